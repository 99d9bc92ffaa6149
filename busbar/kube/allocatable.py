"""Wait until every worker offers exactly the devices that its pool expects.

An operator's own "ready" is not enough: it also reports ready when it found no GPU at all, its rollout
differs by minutes between the nodes (NVIDIA/aicr#1862), after an update the former operator reports the new
policy as ready until its lease expires (NVIDIA/gpu-operator#1567), and one broken node keeps the policy at
notReady. What counts is what the scheduler can allocate, and the rollout of an operator of ours on each node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter

from pydantic import Field

from busbar.exits import Failed
from busbar.finding import STACK, Fix, with_fix
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.gpus import count
from busbar.kube.nodes import Node, renewals
from busbar.kube.objects import find
from busbar.kube.pods import issues_of, namespace_report, readiness
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.models import StrictModel
from busbar.text import listed

TOOLKIT_LABEL = "app=nvidia-container-toolkit-daemonset"
TOOLKIT = "nvidia-container-toolkit-ctr"
# The toolkit sleeps for 5 s, installs, and signals containerd, which ends K3s's agent. It is back in 13 s.
TOOLKIT_SECONDS = 30
POLL_SECONDS = 1.5
# Lists of hundreds of Nodes and pods are megabytes: the more there are, the longer the interval.
NODES_PER_SECOND = 100
_REVISION = "deployment.kubernetes.io/revision"
_HASH = "controller-revision-hash"
_NAMED_NODES = 10
# Labels by which NVIDIA's operators upgrade drivers in containers (NVIDIA/k8s-operator-libs, pkg/upgrade).
_UPGRADES = ("nvidia.com/gpu-driver-upgrade", "nvidia.com/ofed-driver-upgrade")


class PolicySpec(StrictModel):
    """Which policy objects to read, and how to read them."""

    kind: str
    path: str = Field(description="Collection in the API, such as /apis/nvidia.com/v1/clusterpolicies.")
    must_be_ready: bool = Field(
        False, description="Whether a policy that exists must be ready; otherwise it is only quoted."
    )
    empty_reasons: frozenset[str] = Field(
        frozenset(), description='Reasons that turn "ready" into not ready: the operator found nothing to do.'
    )


@dataclass(frozen=True)
class PolicyState:
    """Whether a policy is ready, its status in one line, and whether no condition is of an earlier policy."""

    ready: bool
    summary: str
    current: bool


def read_policy(api: Api, spec: PolicySpec) -> list[PolicyState]:
    """The policies of one kind; none where the kind does not exist. Raises ApiError for all else."""
    try:
        return [policy_state_of(spec, policy) for policy in api.list(spec.path)]
    except ApiError as error:
        if error.not_found:
            return []
        raise


def policy_state_of(spec: PolicySpec, policy: JsonObject) -> PolicyState:
    """Read one policy. A policy without a status has not been processed by its operator: not ready."""
    status = policy.get("status") or {}
    state = str(status.get("state") or "no status, the operator has not processed it")
    remarks: list[str] = []
    empty, current = False, True
    for condition in status.get("conditions") or []:
        reason, message = condition.get("reason") or "", condition.get("message") or ""
        found_nothing = reason in spec.empty_reasons
        empty = empty or found_nothing
        # Only the Network Operator has it, since 26.7.
        observed = condition.get("observedGeneration")
        current = current and (observed is None or observed == policy["metadata"].get("generation"))
        # `Ready`, and of components `SRIOVDevicePluginReady`: True is good.
        is_good = str(condition.get("type")).endswith("Ready")
        if found_nothing or (condition.get("status") == "True" and not is_good):
            remarks.append(f"{reason}: {message}".rstrip(": "))
    if not current:
        remarks.append("the operator has not processed its last change")
    if reason := status.get("reason"):
        remarks.append(str(reason))
    for applied in status.get("appliedStates") or []:
        if applied.get("state") not in ("ready", "ignore"):
            message = f" ({applied['message']})" if applied.get("message") else ""
            remarks.append(f"{applied.get('name')} is {applied.get('state')}{message}")
    summary = "; ".join([f"{spec.kind} {policy['metadata']['name']}: {state}", *dict.fromkeys(remarks)])
    return PolicyState(state == "ready" and current and not empty, summary, current)


class RolloutSpec(StrictModel):
    """What of an operator decides."""

    lease: str | None = Field(description="The operator's lease; None: the operator itself does not matter.")
    apps: list[str] = Field(description="Label `app` of the DaemonSets without which jobs get no devices.")

    @property
    def selector(self) -> str:
        """Of these DaemonSets, and of their pods and revisions."""
        return f"app in ({','.join(self.apps)})"


class AllocatableSpec(StrictModel):
    """What to wait for; the JSON that `busbar wait allocatable` reads on stdin."""

    resource: str = Field(description="Extended resource, such as nvidia.com/gpu.")
    nodes: dict[str, int] = Field(min_length=1, description="Expected devices per node, by node name.")
    deadline_seconds: float = Field(gt=0)
    stable_seconds: float = Field(
        30, ge=0, description="How long it must stay so: a foreign toolkit may restart agents meanwhile."
    )
    policy: PolicySpec | None = Field(None, description="The operator's policy.")
    namespace: str | None = Field(None, description="Namespace of the operator's pods.")
    release: str | None = Field(None, description="Helm release of the operator in that namespace.")
    rollout: RolloutSpec | None = Field(
        None, description="What decides in the namespace instead of the policy, which is then only quoted."
    )
    fix: str | None = Field(None, description="What to check on a node, for the error message.")
    labels: dict[str, str] = Field({}, description="Labels by which the operator selects the nodes.")
    also_drained: bool = Field(False, description="Wait also for nodes that `busbar drain` has taken out.")


@dataclass(frozen=True)
class Shortfall:
    """A node that does not offer what it should, and the reason as far as its Node object shows it."""

    node: str
    found: int
    expected: int
    reason: str
    ready: bool = True

    @property
    def brief(self) -> str:
        """For a progress line: `worker-1 0/8`."""
        return f"{self.node} {self.found}/{self.expected}" + ("" if self.ready else " NotReady")

    def __str__(self) -> str:
        return f"{self.node}: {self.found} allocatable, {self.expected} expected ({self.reason})"


def shortfalls(nodes: Iterable[JsonObject], spec: AllocatableSpec) -> list[Shortfall]:
    """The nodes of `spec` that do not offer exactly what they should, in the order of `spec`."""
    by_name = {node["metadata"]["name"]: node for node in nodes}
    found = (_shortfall(name, by_name.get(name), want, spec) for name, want in spec.nodes.items())
    return [shortfall for shortfall in found if shortfall]


def drained(nodes: Iterable[JsonObject], spec: AllocatableSpec) -> dict[str, str]:
    """The nodes of `spec` that are not waited for, and why: `busbar drain` has taken them out."""
    found = {} if spec.also_drained else {node.name: node.drained for node in map(Node.of, nodes)}
    return {name: found[name] for name in spec.nodes if found.get(name)}


def _shortfall(name: str, node: JsonObject | None, expected: int, spec: AllocatableSpec) -> Shortfall | None:
    if node is None:
        return Shortfall(name, 0, expected, "the cluster has no node with this name")
    status, resource = node.get("status") or {}, spec.resource
    offered = count(status.get("allocatable"), resource)
    ready = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), JsonObject())
    if ready.get("status") != "True":
        reason = f"the node is not Ready: {ready.get('message') or ready.get('reason') or 'no status'}"
        return Shortfall(name, offered, expected, reason, ready=False)
    if offered == expected:
        return None
    capacity = count(status.get("capacity"), resource)
    if offered > expected:
        reason = "more than the pool has: the device plugin also counts other devices"
    elif capacity > offered:
        reason = f"the device plugin reports {capacity - offered} of {capacity} as unhealthy"
    elif not offered and (lacking := spec.labels.items() - (node["metadata"].get("labels") or {}).items()):
        texts = [f"{key}={value}" for key, value in sorted(lacking)]
        reason = f"no device plugin runs there: the node lacks {' and '.join(texts)}"
    elif resource not in (status.get("capacity") or {}):
        reason = "no device plugin has registered this resource"
    else:
        reason = "the device plugin found no more"
    return Shortfall(name, offered, expected, reason)


def wait(api: Api, spec: AllocatableSpec, clock: Clock, progress: ProgressCallback) -> None:
    """Return when every node has offered what it should for `stable_seconds`.

    Raises Failed at the deadline, or at once if the operator's release is not installed, and ApiError
    at once where waiting cannot help (the credentials are refused).
    """
    look, deadline = _Look(api, spec, clock), Deadline(clock, spec.deadline_seconds)
    seconds = POLL_SECONDS + len(spec.nodes) / NODES_PER_SECOND
    try:
        progress(wait_until(look, deadline, poll_seconds=seconds, progress=progress))
    except TimedOut as timeout:
        raise Failed(_explain(api, spec, look, timeout.error)) from timeout


class _Look:
    """The condition of the wait.

    `missing` and `unready` are what the last look found; of what is in `restarts` only time is waited for.
    """

    def __init__(self, api: Api, spec: AllocatableSpec, clock: Clock) -> None:
        self._api, self._spec, self._clock = api, spec, clock
        self._good_since: float | None = None
        self._renewal_then: str | None = None
        self._is_first = True
        self.missing: list[Shortfall] = []
        self.unready: list[str] = []
        self.restarts: list[str] = []

    def __call__(self) -> str | Pending:
        if self._is_first:
            self._require_release()
            self._is_first = False
        # Reset first: a look that fails breaks the stable time too.
        since, self._good_since = self._good_since, None
        self.missing, self.unready, self.restarts = [], [], []
        nodes = self._api.list("/api/v1/nodes")
        out = drained(nodes, self._spec)
        wanted = {name for name, count in self._spec.nodes.items() if count and name not in out}
        waited = {name: node for node in nodes if (name := node["metadata"]["name"]) in wanted}
        self.missing = [each for each in shortfalls(nodes, self._spec) if each.node not in out]
        remarks = [] if self.missing else self._read_operator(waited)
        self.unready += upgrades(waited)
        state = _summary(self._spec, self, out)
        if self.missing or self.unready:
            return Pending(state)
        now, renewed = self._clock.now(), renewal(self._api, self._spec.namespace, self._spec.rollout)
        if since is None:
            self._renewal_then = renewed
        self._good_since = now if since is None else since
        if self.restarts or now - self._good_since < self._spec.stable_seconds:
            return Pending(state)
        # An operator that hangs, or has not begun yet, leaves everything as it was.
        if renewed is not None and renewed == self._renewal_then:
            self.unready = ["the operator to renew its lease"]
            return Pending(_summary(self._spec, self, out))
        if remarks:
            pods = self._api.list(f"/api/v1/namespaces/{self._spec.namespace}/pods")
            remarks += _broken_elsewhere(pods, waited)
        return "; ".join([state, *remarks])

    def _require_release(self) -> None:
        """Hosts may have been installed anew under an old state: the engine then installs nothing on them."""
        namespace, release = self._spec.namespace, self._spec.release
        if release is None:
            return
        # A page has one Secret, because each has a whole chart.
        path, query = f"/api/v1/namespaces/{namespace}/secrets", f"owner=helm,name={release}"
        if not self._api.get(path, labelSelector=query, limit="1").get("items"):
            what = f"Helm release {namespace}/{release} is not installed on the cluster, but in the state"
            raise Failed(with_fix(what, Fix(command=("up", STACK, "--converge", "cluster"))))

    def _read_operator(self, nodes: Mapping[str, JsonObject]) -> list[str]:
        """Set `unready` and `restarts`; the policies that are not ready, and only quoted."""
        spec = self._spec
        # A site may run the device plugin without the operator's policy: an absent one is not required.
        found = read_policy(self._api, spec.policy) if spec.policy else []
        unready = [policy.summary for policy in found if not policy.ready]
        if spec.rollout is None or spec.namespace is None:
            self.unready = unready if spec.policy and spec.policy.must_be_ready else []
            return []
        path = f"/api/v1/namespaces/{spec.namespace}/pods"
        pods = self._api.list(path, labelSelector=spec.rollout.selector)
        self.unready = pending(self._api, spec.namespace, spec.rollout, pods, nodes)
        self.unready += [policy.summary for policy in found if not policy.current]
        self.restarts = restarts(self._api, pods, nodes)
        return unready


def _broken_elsewhere(pods: Iterable[JsonObject], nodes: Iterable[str]) -> list[str]:
    """What is not Ready on each node that is not waited for."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        has_ended = (pod.get("status") or {}).get("phase") == "Succeeded"
        if node and node not in nodes and not has_ended and not readiness([pod])[0]:
            # A validation that waits for the driver has no problem in its status.
            issue = next(issues_of(pod), f"{pod['metadata']['name']} is not Ready")
            found.setdefault(node, []).append(str(issue))
    return [f"not waited for: {node}: {listed(found[node], _NAMED_NODES)}" for node in sorted(found)]


def _summary(spec: AllocatableSpec, look: _Look, out: Mapping[str, str]) -> str:
    count = len(spec.nodes) - len(out)
    text = f"{spec.resource}: {count - len(look.missing)}/{count} nodes ready"
    if look.missing:
        text += f" ({listed([shortfall.brief for shortfall in look.missing], _NAMED_NODES)})"
    text += "".join(f"; not waited for: {name}, drained: {reason}" for name, reason in out.items())
    return text + "".join(f"; waiting for {reason}" for reason in (*look.unready, *look.restarts))


def _explain(api: Api, spec: AllocatableSpec, look: _Look, error: ApiError | None) -> str:
    head = f"not offered by every node for {spec.stable_seconds:g} s without interruption"
    if look.missing:
        head = f"{len(look.missing)} of {len(spec.nodes)} nodes do not offer what their pool expects"
    lines = [f"{spec.resource}: timed out after {spec.deadline_seconds:.0f} s: {head}"]
    lines += map(str, look.missing[: 2 * _NAMED_NODES])
    lines += [f"... and {len(more)} more nodes"] if (more := look.missing[2 * _NAMED_NODES :]) else []
    lines += [f"waiting for {reason}" for reason in (*look.unready, *look.restarts)]
    lines += [str(error)] if error else []
    if spec.policy:
        try:
            found = [policy.summary for policy in read_policy(api, spec.policy)]
            found = found or [f"there is no {spec.policy.kind}"]
            lines += [line for line in found if not any(line in each for each in lines)]
        except ApiError as unread:
            lines.append(f"{spec.policy.kind} cannot be read: {unread}")
    lines += namespace_report(api, spec.namespace) if spec.namespace else []
    lines += [f"Fix: {spec.fix}"] if spec.fix else []
    return "\n  ".join(lines)


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
        names = listed([each["metadata"]["name"] for each in found], _NAMED_NODES)
        if not found:
            lacking.append(f"a DaemonSet app={app}, which does not exist")
        elif not all(map(_observed, found)):
            lacking.append(f"DaemonSet {names}, which has changed")
        elif left := _left(found, revisions, pods, nodes):
            lacking.append(f"DaemonSet {names} on {listed(left, _NAMED_NODES)}")
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
    return [f"the agent on {listed(sorted({*found}), _NAMED_NODES)}, {what}"] if found else []


def upgrades(nodes: Mapping[str, JsonObject]) -> list[str]:
    """On which of NODES an operator will end jobs to upgrade a driver. Until its turn a node offers all."""
    found = []
    for name, node in nodes.items():
        labels = node["metadata"].get("labels") or {}
        states = [labels.get(f"{each}-state") for each in _UPGRADES if labels.get(f"{each}.skip") != "true"]
        found += [f"{name} ({state})" for state in states if state not in (None, "", "upgrade-done")]
    what = "the upgrade of the driver (label nvidia.com/*-driver-upgrade-state) on"
    return [f"{what} {listed(found, _NAMED_NODES)}"] if found else []


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
