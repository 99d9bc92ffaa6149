"""The HealthCheckProgram of a compute host: host/health.sh with the numbers of its pool."""

from __future__ import annotations

import shlex

from busbar.hosts import scripts
from busbar.hosts.host import Host
from stacks.slurm.package.config import Slurm

_PARTS = ("lib", "preflight-hardware", "slurm/health")
_LINK_LAYERS = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}


def program(slurm: Slurm, host: Host) -> str:
    """The whole script; empty where no health check is wanted."""
    if not slurm.health_check.enabled:
        return ""
    pool = slurm.pools[host.pool or ""]
    transport = slurm.validation_of(host.pool or "").required_transport
    values = {
        "HEALTH_NODE": host.name,
        "HEALTH_GPUS": str(pool.gpus),
        "HEALTH_RAILS": str(pool.rails),
        "HEALTH_RATE": f"{pool.rate_gbps:.0f}",
        "HEALTH_LINK_LAYER": _LINK_LAYERS[pool.link_layer],
        "HEALTH_IGNORED": " ".join(pool.ignore_hcas),
        "HEALTH_PEERMEM": str(transport == "gpudirect-rdma").lower(),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join(["#!/usr/bin/env bash", "# Written by busbar", *lines, *map(scripts.part, _PARTS)])
