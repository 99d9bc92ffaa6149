"""A site to render for: valid configuration, in which each test changes what it is about."""

from __future__ import annotations

import base64
from typing import Any

from busbar.config import Cluster, load
from busbar.kube.nccljob import NcclJob, resolve

_KEY_HEAD = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"


def host(name: str, number: int) -> dict[str, Any]:
    """A host with an address and a key of its own."""
    key = base64.b64encode(_KEY_HEAD + bytes([number]) * 32).decode()
    return {"name": name, "address": f"10.0.0.{number}", "host_key": f"ssh-ed25519 {key}"}


def cluster(pool: dict[str, Any] | None = None, **parts: Any) -> Cluster:
    """A site with one load balancer, one server and four workers; `parts` replace its sections."""
    return load(
        {
            "name": "site",
            "ssh": {"agent": True},
            "hosts": {
                "load_balancers": [host("lb-1", 1)],
                "servers": [host("server-1", 2)],
                "workers": [host(f"worker-{number}", 10 + number) for number in range(1, 5)],
            },
            "pools": {"h100": {"gpus": 8, "rails": 8, "rate_gbps": 400, **(pool or {})}},
            **parts,
            "k3s": {"sha256": {"amd64": "0" * 64}, **parts.get("k3s", {})},
        }
    )


def job(pool: dict[str, Any] | None = None, nodes: int = 4, **parts: Any) -> NcclJob:
    """The measurement of the first `nodes` workers of that site."""
    return resolve(cluster(pool, **parts), "h100", [f"worker-{number}" for number in range(1, nodes + 1)])
