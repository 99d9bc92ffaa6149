"""The configuration of a stack: `load` turns the object `busbar:cluster` into a validated `Cluster`."""

from busbar.config.cluster import Cluster
from busbar.config.errors import ConfigError
from busbar.config.hosts import HostConfig, Hosts, VirtualIp, Worker
from busbar.config.k3s import S3, Checksums, Image, K3s, Snapshots
from busbar.config.load import load, section, warnings
from busbar.config.operators import Chart, GpuOperator, MpiOperator, NetworkOperator
from busbar.config.pools import Pool, Taint
from busbar.config.schema import SECRETS
from busbar.config.secrets import registry_credentials
from busbar.config.ssh import Bastion, Ssh
from busbar.config.validation import Validation

__all__ = [
    "S3",
    "SECRETS",
    "Bastion",
    "Chart",
    "Checksums",
    "Cluster",
    "ConfigError",
    "GpuOperator",
    "HostConfig",
    "Hosts",
    "Image",
    "K3s",
    "MpiOperator",
    "NetworkOperator",
    "Pool",
    "Snapshots",
    "Ssh",
    "Taint",
    "Validation",
    "VirtualIp",
    "Worker",
    "load",
    "registry_credentials",
    "section",
    "warnings",
]
