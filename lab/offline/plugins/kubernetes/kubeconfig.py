"""The kubeconfig of the provider's configuration, and the cluster that it names."""

from __future__ import annotations

import os
from typing import Any

from busbar.kube import kubeconfig


def parse(text_or_path: str) -> dict[str, Any]:
    """The kubeconfig given as text or as a path ("~" is the home folder); raises ValueError."""
    text = text_or_path
    path = os.path.expanduser(text_or_path)
    if "\n" not in path and os.path.exists(path):
        with open(path) as file:
            text = file.read()
    try:
        return kubeconfig.parse(text)
    except ValueError as error:
        raise ValueError(f"failed to parse kubeconfig: {error}") from error


def active_cluster(parsed: dict[str, Any] | None, context: str | None, cluster: str | None) -> Any:
    """The cluster entry that a context selects, or None: it decides whether the cluster is still the same."""
    try:
        return kubeconfig.find_context(parsed or {}, context, cluster).cluster
    except ValueError:
        return None
