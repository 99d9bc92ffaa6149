"""How far the rollout of the GPU Operator is on a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from busbar.kube.client import Api, JsonObject
from busbar.kube.nodes import renewals
from busbar.text import listed

TOOLKIT_LABEL = "app=nvidia-container-toolkit-daemonset"
TOOLKIT = "nvidia-container-toolkit-ctr"
# The toolkit sleeps for 5 s, installs, and then signals containerd, with which K3s's agent ends. systemd
# starts that again within 13 s.
TOOLKIT_SECONDS = 30
_NAMED = 5


def restarts(api: Api, pods: Iterable[JsonObject], nodes: Mapping[str, JsonObject]) -> list[str]:
    """On which of NODES the toolkit, whose pod is in PODS, may still restart the agent. Raises ApiError."""
    of_toolkit = [
        (pod["spec"].get("nodeName"), container)
        for pod in pods
        for container in (pod.get("status") or {}).get("containerStatuses") or []
        if container.get("name") == TOOLKIT and pod["spec"].get("nodeName") in nodes
    ]
    if not of_toolkit:
        return []
    renewed = renewals(api)
    found = []
    for node, container in of_toolkit:
        started = ((container.get("state") or {}).get("running") or {}).get("startedAt")
        begun = [datetime.fromisoformat(at) for at in (started, _ready_since(nodes[node])) if at]
        # All three times are by the clock of the node's kubelet.
        until = max(begun) + timedelta(seconds=TOOLKIT_SECONDS) if started else None
        if until is None or node not in renewed or renewed[node][0] < until:
            found.append(node)
    what = f"until {TOOLKIT} has run for {TOOLKIT_SECONDS} s it may restart the agent"
    return [f"{listed(sorted(found), _NAMED)}: {what}"] if found else []


def _ready_since(node: JsonObject) -> str | None:
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((each.get("lastTransitionTime") for each in conditions if each.get("type") == "Ready"), None)
