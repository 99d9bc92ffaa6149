"""The lines of `busbar status` about workers that `busbar drain` has taken out."""

from __future__ import annotations

from typing import Any

from busbar.cli.stack.target import Target
from busbar.kube import nodes
from busbar.kube.client import ApiError, RestApi

_API_SECONDS = 5.0


def lines(kubeconfig: Any, target: Target) -> list[str]:
    """Lines about the workers that `busbar drain` has taken out, or one line if that is not known."""
    try:
        api = RestApi(str(kubeconfig))
    except ValueError:  # a project without a cluster
        return []
    api.timeout_seconds = _API_SECONDS
    try:
        names = {node.name: node.drained for node in nodes.read(api) if node.drained}
    except ApiError as error:
        return [f"       drained  unknown: {error}"]
    fix = f"busbar uncordon {target.name}"
    return [
        f"       drained  {name}: {why}; when its repair is done: {fix} {name}" for name, why in names.items()
    ]
