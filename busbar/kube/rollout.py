"""Whether the rollout of an operator that busbar has installed has ended on the nodes that are waited for.

Its policy does not say so. After an update the former operator reports the new policy as ready until its
lease expires (NVIDIA/gpu-operator#1567), and one broken node keeps the policy at notReady.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from operator import itemgetter

from pydantic import Field

from busbar.kube.client import Api, JsonObject
from busbar.kube.nodes import renewals
from busbar.kube.objects import find
from busbar.kube.pods import readiness
from busbar.models import StrictModel
from busbar.text import listed

TOOLKIT_LABEL = "app=nvidia-container-toolkit-daemonset"
TOOLKIT = "nvidia-container-toolkit-ctr"
# The toolkit sleeps for 5 s, installs, and then signals containerd, with which K3s's agent ends. systemd
# starts that again within 13 s.
TOOLKIT_SECONDS = 30
_REVISION = "deployment.kubernetes.io/revision"
_HASH = "controller-revision-hash"
_NAMED = 5


class RolloutSpec(StrictModel):
    """What of an operator decides."""

    lease: str | None = Field(description="The operator's lease; None: the operator itself does not matter.")
    apps: list[str] = Field(description="Label `app` of the DaemonSets without which jobs get no devices.")

    @property
    def selector(self) -> str:
        """Of these DaemonSets, and of their pods and revisions."""
        return f"app in ({','.join(self.apps)})"


def pods(api: Api, namespace: str, spec: RolloutSpec) -> list[JsonObject]:
    """Those of the DaemonSets. Raises ApiError."""
    return api.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=spec.selector)


def pending(
    api: Api, namespace: str, spec: RolloutSpec, pods: Iterable[JsonObject], nodes: Iterable[str]
) -> list[str]:
    """What the rollout lacks on NODES, one noun phrase each. PODS: of the DaemonSets. Raises ApiError."""
    apps = f"/apis/apps/v1/namespaces/{namespace}"
    daemon_sets = api.list(f"{apps}/daemonsets", labelSelector=spec.selector)
    revisions = api.list(f"{apps}/controllerrevisions", labelSelector=spec.selector)
    lacking = [*_leader(api, namespace, spec.lease)] if spec.lease else []
    for app in spec.apps:
        found = [each for each in daemon_sets if (each["metadata"].get("labels") or {}).get("app") == app]
        names = listed([each["metadata"]["name"] for each in found], _NAMED)
        if not found:
            lacking.append(f"a DaemonSet app={app}, which does not exist")
        elif not all(map(_observed, found)):
            lacking.append(f"DaemonSet {names}, which has changed")
        elif left := _left(found, revisions, pods, nodes):
            lacking.append(f"DaemonSet {names} on {listed(left, _NAMED)}")
    return lacking


def renewal(api: Api, namespace: str | None, spec: RolloutSpec | None) -> str | None:
    """The time at which the operator has renewed its lease, every 2 s while it works; None without a lease.

    Raises ApiError.
    """
    if not (namespace and spec and spec.lease):
        return None
    return str(_lease(api, namespace, spec.lease).get("renewTime"))


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
        conditions = nodes[node]["status"].get("conditions") or []
        ready = [each.get("lastTransitionTime") for each in conditions if each.get("type") == "Ready"]
        # All times are by the clock of the node's kubelet.
        begun = [datetime.fromisoformat(at) for at in (started, *ready) if at]
        until = max(begun) + timedelta(seconds=TOOLKIT_SECONDS) if started else None
        if until is None or node not in renewed or renewed[node][0] < until:
            found.append(node)
    what = f"which {TOOLKIT} may restart until it has run for {TOOLKIT_SECONDS} s"
    return [f"the agent on {listed(sorted({*found}), _NAMED)}, {what}"] if found else []


def _leader(api: Api, namespace: str, name: str) -> Iterable[str]:
    """What keeps the current operator from acting. An operator does not release its lease when it ends."""
    apps = f"/apis/apps/v1/namespaces/{namespace}"
    holder = str(_lease(api, namespace, name).get("holderIdentity") or "")
    # <pod>_<uuid>
    pod = find(api, f"/api/v1/namespaces/{namespace}/pods/{holder.rpartition('_')[0]}") if holder else None
    if pod and not _ends(pod):
        replica_set = find(api, f"{apps}/replicasets/{_controller(pod).get('name')}") or {"metadata": {}}
        deployment = find(api, f"{apps}/deployments/{_controller(replica_set).get('name')}")
        if deployment and not (_rolled_out(deployment) and _revision(replica_set) == _revision(deployment)):
            yield f"Deployment {deployment['metadata']['name']} to be rolled out"
        if deployment:
            return
    yield f"lease {name}, to be taken by the current pod of the operator (held by {holder or 'nobody'})"


def _lease(api: Api, namespace: str, name: str) -> JsonObject:
    found = find(api, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}") or JsonObject()
    return found.get("spec") or JsonObject()


def _rolled_out(deployment: JsonObject) -> bool:
    replicas, status = deployment["spec"].get("replicas", 1), deployment.get("status") or {}
    counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")]
    return _observed(deployment) and counts == [replicas] * 3


def _observed(found: JsonObject) -> bool:
    """Whether the controller has seen the object as it is."""
    return bool((found.get("status") or {}).get("observedGeneration") == found["metadata"].get("generation"))


def _revision(found: JsonObject) -> object:
    return (found["metadata"].get("annotations") or {}).get(_REVISION)


def _left(
    daemon_sets: Iterable[JsonObject],
    revisions: Iterable[JsonObject],
    pods: Iterable[JsonObject],
    nodes: Iterable[str],
) -> list[str]:
    """The nodes on which no pod of the DaemonSets is available, or one of an earlier revision is left."""
    current: dict[str, str | None] = {each["metadata"]["uid"]: None for each in daemon_sets}
    for each in sorted(revisions, key=itemgetter("revision")):
        if (uid := _controller(each).get("uid")) in current:
            current[uid] = (each["metadata"].get("labels") or {}).get(_HASH)
    good: dict[str, list[bool]] = defaultdict(list)
    for pod in pods:
        owner, labels = _controller(pod).get("uid"), pod["metadata"].get("labels") or {}
        if owner in current:
            is_current = bool(labels.get(_HASH)) and labels.get(_HASH) == current[owner] and not _ends(pod)
            good[pod["spec"].get("nodeName")].append(is_current and readiness([pod])[0] == 1)
    return [node for node in nodes if not good[node] or not all(good[node])]


def _ends(pod: JsonObject) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _controller(found: JsonObject) -> JsonObject:
    """The owner reference of what controls the object; empty where nothing does."""
    owners = found["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), JsonObject())
