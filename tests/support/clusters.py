"""Configurations of whole sites, as the object `busbar:cluster` holds them."""

from __future__ import annotations

import base64
import hashlib
import socket
from collections.abc import Mapping
from typing import Any

from busbar.manifests import operators

OPERATORS = tuple(value for value in vars(operators).values() if isinstance(value, operators.Operator))
"""Every operator that the program can install."""
H100_POOL = {"gpus": 8, "rails": 8, "rate_gbps": 400, "gpu_model": "H100"}


def host_key(name: str) -> str:
    """A well-formed ed25519 host key, the same for the same name (its private half is known to nobody)."""
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + hashlib.sha256(name.encode()).digest()
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"


def host(name: str, address: str, **more: Any) -> dict[str, Any]:
    """One host with its key."""
    return {"name": name, "address": address, "host_key": host_key(name), **more}


def site(
    *,
    load_balancers: int = 1,
    servers: int = 3,
    workers: Mapping[str, int] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """A valid site; `workers` is {pool: how many}, `sections` replaces or adds top-level keys."""
    counts = workers if workers is not None else {"h100": 2}
    numbered = [pool for pool, count in counts.items() for _ in range(count)]
    hosts: dict[str, Any] = {
        "load_balancers": [host(f"lb-{i}", f"192.0.2.{i}") for i in range(1, load_balancers + 1)],
        "servers": [host(f"server-{i}", f"192.0.2.{10 + i}") for i in range(1, servers + 1)],
        "workers": [
            host(f"gpu-{i}", f"198.18.{i // 250}.{i % 250 + 1}", pool=pool)
            for i, pool in enumerate(numbered, 1)
        ],
    }
    if load_balancers == 2:
        hosts["virtual_ip"] = {"address": "192.0.2.100", "interface": "eth0"}
    return {
        "name": "site",
        "ssh": {"agent": True},
        "hosts": hosts,
        "pools": {pool: dict(H100_POOL) for pool in counts},
        "k3s": {"sha256": {"amd64": "ab" * 32}},
        **sections,
    }


OWN_NFD = {"values": {"nfd": {"enabled": False}}}
"""The section network_operator of a site that has its own Node Feature Discovery."""


def all_operators(*, enabled: bool) -> dict[str, Any]:
    """The sections of `site` that install every operator, or none."""
    return {operator.config_key: {"enabled": enabled} for operator in OPERATORS}


def refusing(cluster: dict[str, Any]) -> dict[str, Any]:
    """The same with all hosts on this machine, at a port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    hosts = [host for role in ("load_balancers", "servers", "workers") for host in cluster["hosts"][role]]
    for number, host in enumerate(hosts, start=1):
        host.update(address=f"127.0.1.{number}", port=port)
    return cluster
