"""The pods that must leave a Node, and their evictions: the API refuses what a disruption budget forbids."""

from __future__ import annotations

from collections.abc import Callable

from busbar.kube.client import Api, ApiError, JsonObject

# Pods of these owners stay with their Node.
_STAY = frozenset({"DaemonSet", "Node"})


def evict_all(api: Api, node: str, stays: Callable[[JsonObject], str] = lambda pod: "") -> str:
    """Ask for the eviction of the Node's pods; those that are left, with what keeps each. Raises ApiError.

    `stays`: why no eviction of a pod is asked for; "" where one is.
    """
    pods = api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")
    return "; ".join(f"{_name(pod)} ({_what_keeps(api, pod, stays)})" for pod in pods if _must_leave(pod))


def owners(pod: JsonObject) -> set[str]:
    """The kinds of what owns a pod."""
    return {str(each.get("kind")) for each in pod["metadata"].get("ownerReferences") or []}


def _must_leave(pod: JsonObject) -> bool:
    is_over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return not is_over and not owners(pod) & _STAY


def _name(pod: JsonObject) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _what_keeps(api: Api, pod: JsonObject, stays: Callable[[JsonObject], str]) -> str:
    return "ending" if pod["metadata"].get("deletionTimestamp") else stays(pod) or _evict(api, pod)


def _evict(api: Api, pod: JsonObject) -> str:
    """Why the pod is still there: it ends, or the API refuses, for a disruption budget with its name."""
    metadata = {key: pod["metadata"][key] for key in ("namespace", "name")}
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    try:
        api.create(path, body)
    except ApiError as error:
        return "ending" if error.not_found else error.reason
    return "ending"
