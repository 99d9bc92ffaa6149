"""The cluster's kubeconfig, as it is handed out."""

from __future__ import annotations

import yaml


def readdressed(kubeconfig: str, *, server: str, name: str) -> str:
    """K3s's kubeconfig (which points at 127.0.0.1) for `server`, an https URL, with `name` for its entries.

    Raises ValueError where the text is no kubeconfig with one cluster.
    """
    content = yaml.safe_load(kubeconfig)
    clusters = content.get("clusters") if isinstance(content, dict) else None
    if (
        not clusters
        or len(clusters) != 1
        or "certificate-authority-data" not in clusters[0].get("cluster", {})
    ):
        raise ValueError("the server's k3s.yaml is no kubeconfig with exactly one cluster and its CA")
    user = content["users"][0]["user"]
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {**clusters[0]["cluster"], "server": server}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        },
        sort_keys=False,
    )
