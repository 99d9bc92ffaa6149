"""The result of a host script: one JSON object on the last line of its stdout; and those of a K3s server.

The login shell of a host may print on stdout before the script does (an `echo` in .bashrc), even without a
final line break.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import yaml


def result(stdout: str) -> dict[str, Any]:
    """The object in the last line of `stdout`. Raises ValueError if there is none."""
    lines = stdout.strip().splitlines()
    last = lines[-1] if lines else ""
    found = json.loads(last[max(last.find('{"'), 0) :])
    if not isinstance(found, dict):
        raise ValueError("the last line is not a JSON object")
    return found


@dataclass(frozen=True)
class ServerFacts:
    """A running K3s server. `ca_sha256` (hex) is what a secure join token pins; `ca_pem` is the CA itself."""

    version: str
    ca_sha256: str
    ca_pem: str


def server_facts(stdout: str) -> ServerFacts:
    """The facts of host/k3s-server.sh: the last line of `stdout`, as JSON. Raises ValueError otherwise."""
    try:
        found = result(stdout)
        return ServerFacts(str(found["version"]), str(found["ca_sha256"]), str(found["ca_pem"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"host/k3s-server.sh exited 0 without a facts line ({error!r}): {stdout[-200:]!r}"
        ) from None


def known_ca(stdout: str) -> str:
    """The hash of the cluster's CA that host/k3s-nodes.sh printed; "" before there is a cluster."""
    return str(result(stdout).get("ca_sha256", ""))


def kubeconfig_text(stdout: str) -> str:
    """The kubeconfig that host/kubeconfig.sh printed. Raises ValueError, without showing anything of it."""
    try:
        return str(result(stdout)["kubeconfig"])
    except (ValueError, KeyError):
        raise ValueError("host/kubeconfig.sh exited 0 without a kubeconfig line") from None


def with_server(kubeconfig: str, *, server: str, name: str, proxy_url: str | None = None) -> str:
    """K3s's kubeconfig, which points at 127.0.0.1, for `server` (an https URL), with `name` for its entries.

    `proxy_url` is the HTTP proxy to it, if any.
    Raises ValueError unless the text is a kubeconfig with exactly one cluster and its CA.
    """
    content = yaml.safe_load(kubeconfig)
    clusters = content.get("clusters") if isinstance(content, dict) else None
    if (
        not clusters
        or len(clusters) != 1
        or "certificate-authority-data" not in clusters[0].get("cluster", {})
    ):
        raise ValueError("the server's k3s.yaml is not a kubeconfig with exactly one cluster and its CA")
    user = content["users"][0]["user"]
    proxy = {"proxy-url": proxy_url} if proxy_url else {}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {**clusters[0]["cluster"], "server": server, **proxy}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        },
        sort_keys=False,
    )
