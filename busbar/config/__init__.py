"""The configuration of a stack: `load` turns the object `busbar:cluster` into a validated `Cluster`."""

from busbar.config.checks import untested_versions, warnings
from busbar.config.cluster import (
    Bastion,
    Chart,
    Cluster,
    GpuOperator,
    HostConfig,
    Hosts,
    K3s,
    NetworkOperator,
    Pool,
    Ssh,
    Validation,
    VirtualIp,
    Worker,
)
from busbar.config.findings import ConfigError, section
from busbar.config.project import load
from busbar.config.stackfile import SECRETS, registry_credentials
from busbar.finding import Finding

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
    "untested_versions",
    "warnings",
]
