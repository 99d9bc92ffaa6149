"""The configuration of a stack: `load` turns the object `busbar:cluster` into a validated `Cluster`."""

from busbar.config.checks import warnings
from busbar.config.cluster import Cluster
from busbar.config.errors import ConfigError, Finding, section
from busbar.config.hosts import HostConfig, Hosts, VirtualIp, Worker
from busbar.config.k3s import K3s
from busbar.config.operators import Chart, GpuOperator, NetworkOperator
from busbar.config.pools import Pool
from busbar.config.project import load
from busbar.config.schema import SECRETS
from busbar.config.secrets import registry_credentials
from busbar.config.ssh import Bastion, Ssh
from busbar.config.validation import Validation

__all__ = [
    "SECRETS",
    "Bastion",
    "Chart",
    "Cluster",
    "ConfigError",
    "Finding",
    "GpuOperator",
    "HostConfig",
    "Hosts",
    "K3s",
    "NetworkOperator",
    "Pool",
    "Ssh",
    "Validation",
    "VirtualIp",
    "Worker",
    "load",
    "registry_credentials",
    "section",
    "warnings",
]
