"""When the rollout of an operator has ended on the nodes that are waited for."""

from typing import Any

import pytest

from busbar.exits import Failed
from busbar.kube.allocatable import AllocatableSpec, RolloutSpec, wait
from busbar.kube.client import JsonObject
from tests.support import rolled_out as made
from tests.support.kube_cluster import Clock, Cluster, node

NODES, POLICIES = "/api/v1/nodes", "/apis/nvidia.com/v1/clusterpolicies"
APPS = "/apis/apps/v1/namespaces/gpu-operator"
PODS, EVENTS = (f"/api/v1/namespaces/gpu-operator/{kind}" for kind in ("pods", "events"))
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpu-operator/leases/53822513.nvidia.com"


def policy(state: str = "ready", *conditions: JsonObject) -> JsonObject:
    status = {"state": state, "conditions": list(conditions)}
    return {"metadata": {"name": "cluster-policy", "generation": 3}, "status": status}


@pytest.fixture
def api() -> Cluster:
    """Two workers of three offer their GPUs and are waited for; all is rolled out."""
    workers = [node(name, nvidia_com__gpu="8") for name in ("w1", "w2", "w3")]
    objects = {NODES: workers, POLICIES: [policy()], EVENTS: [], **made.gpu_operator(["w1", "w2"])}
    return Cluster(objects)


def spec(**changes: Any) -> AllocatableSpec:
    of_policy = {"kind": "ClusterPolicy", "path": POLICIES, "must_be_ready": True}
    rollout = {"lease": "53822513.nvidia.com", "apps": [made.TOOLKIT, made.GPU_PLUGIN]}
    given = {"nodes": {"w1": 8, "w2": 8}, "stable_seconds": 3, "policy": of_policy, "rollout": rollout}
    of_all = {"resource": "nvidia.com/gpu", "deadline_seconds": 100, "namespace": "gpu-operator"}
    return AllocatableSpec.model_validate({**of_all, **given, **changes})


def settled(api: Cluster, clock: Clock | None = None, **changes: Any) -> list[str]:
    """What was said until the wait ended."""
    said: list[str] = []
    wait(api, spec(**changes), clock or Clock(), said.append)
    return said


def pending(api: Cluster, **changes: Any) -> str:
    """Why the wait did not end."""
    with pytest.raises(Failed) as failure:
        settled(api, **changes)
    return str(failure.value)


def test_the_former_operator_s_lease_is_waited_for_and_then_what_the_new_one_rolls_out(api: Cluster) -> None:
    api.objects[LEASE] = made.held_by("operator-1-x")
    clock, complete = Clock(), api.objects[PODS]

    def lead() -> None:
        api.objects[LEASE] = made.held_by("operator-2-x")
        api.objects[f"{APPS}/daemonsets"][0] = made.daemon_set(made.TOOLKIT, generation=5)
        api.objects[PODS] = [each for each in complete if each["metadata"]["name"] != f"{made.TOOLKIT}-w2"]

    def end() -> None:
        api.objects[f"{APPS}/daemonsets"][0] = made.daemon_set(made.TOOLKIT, generation=5, observed=5)
        api.objects[PODS] = complete

    clock.at(20, lead)
    clock.at(40, end)
    assert any("waiting for lease 53822513.nvidia.com" in line for line in settled(api, clock))
    assert clock.time > 40


def test_an_operator_that_does_not_renew_its_lease_is_waited_for(api: Cluster) -> None:
    hanging = {"holderIdentity": "operator-2-x_7ca2", "renewTime": "2026-01-01T00:00:01.000000Z"}
    api.objects[LEASE] = {"spec": hanging}
    assert "waiting for the operator to renew its lease" in pending(api)
    clock = Clock()
    clock.at(30, lambda: api.objects[LEASE].update(spec={**hanging, "renewTime": "2026-01-01T00:00:31.0Z"}))
    settled(api, clock)
    assert clock.time > 30


def test_a_release_that_is_not_installed_ends_the_wait_at_once(api: Cluster) -> None:
    api.objects["/api/v1/namespaces/gpu-operator/secrets"] = {"items": []}
    clock = Clock()
    with pytest.raises(Failed, match="Helm release gpu-operator/gpu-operator is not installed"):
        settled(api, clock, release="gpu-operator")
    assert clock.time == 0
    api.objects["/api/v1/namespaces/gpu-operator/secrets"] = {"items": [{"metadata": {"name": "r.v1"}}]}
    assert settled(api, release="gpu-operator")


@pytest.mark.parametrize("left", ["nobody", "operator-1-x", "operator-3-x", "operator-2-x"])
def test_a_lease_that_no_current_pod_of_the_operator_holds_is_named(api: Cluster, left: str) -> None:
    api.objects[LEASE] = {"spec": {}} if left == "nobody" else made.held_by(left)
    api.objects[f"{PODS}/operator-2-x"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    waits = f"lease 53822513.nvidia.com, to be taken by the current pod of the operator (held by {left}"
    assert waits in pending(api)


DEPLOYMENT, PLUGIN = f"{APPS}/deployments/operator", "nvidia-device-plugin-daemonset"
ROLLED = "Deployment operator to be rolled out"
UNFINISHED: dict[str, tuple[dict[str, Any], str]] = {
    "a change of the Deployment that was not observed": ({DEPLOYMENT: made.deployment(generation=3)}, ROLLED),
    "the former pod is left": ({DEPLOYMENT: made.deployment(replicas=2)}, ROLLED),
    "no new pod is available": ({DEPLOYMENT: made.deployment(availableReplicas=0)}, ROLLED),
    "the former pod leads": (
        {LEASE: made.held_by("operator-1-x"), f"{PODS}/operator-1-x": made.operator_pod(1)},
        ROLLED,
    ),
    "a DaemonSet does not exist": (
        {f"{APPS}/daemonsets": [made.daemon_set(made.TOOLKIT)]},
        f"a DaemonSet app={PLUGIN}, which does not exist",
    ),
    "no revision is known": ({f"{APPS}/controllerrevisions": []}, f"DaemonSet {PLUGIN} on w1, w2"),
    "a kubelet has renewed no lease": ({made.NODE_LEASES: [made.renewed("w1", "01:00")]}, "the agent on w2"),
    "the operator has not processed the policy": (
        {POLICIES: [policy("ready", {"type": "Ready", "status": "True", "observedGeneration": 2})]},
        "ClusterPolicy cluster-policy: ready; the operator has not processed",
    ),
}


@pytest.mark.parametrize(("found", "waits"), UNFINISHED.values(), ids=UNFINISHED)
def test_what_has_not_been_rolled_out_is_named(api: Cluster, found: dict[str, Any], waits: str) -> None:
    api.objects |= found
    assert f"waiting for {waits}" in pending(api)


def test_without_a_lease_the_operator_itself_does_not_matter(api: Cluster) -> None:
    del api.objects[LEASE]
    of_apps = RolloutSpec(lease=None, apps=[made.TOOLKIT, made.GPU_PLUGIN])
    assert settled(api, rollout=of_apps)[-1] == "nvidia.com/gpu: 2/2 nodes ready"


FORMER = made.operand(made.GPU_PLUGIN, "w2", 1)
OF_W2: dict[str, list[JsonObject]] = {
    "none": [],
    "of the former revision": [FORMER],
    "not available": [made.operand(made.GPU_PLUGIN, "w2", ready=False)],
    "also the former": [made.operand(made.GPU_PLUGIN, "w2"), FORMER],
}


@pytest.mark.parametrize("of_w2", OF_W2.values(), ids=OF_W2)
def test_a_node_without_an_available_current_pod_is_named(api: Cluster, of_w2: list[JsonObject]) -> None:
    others = [each for each in api.objects[PODS] if each["metadata"]["name"] != f"{made.GPU_PLUGIN}-w2"]
    api.objects[PODS] = [*others, *of_w2]
    assert f"waiting for DaemonSet {PLUGIN} on w2" in pending(api)


def test_a_node_without_devices_of_the_pool_needs_no_pod(api: Cluster) -> None:
    api.objects[NODES] = [node("w1", nvidia_com__gpu="8"), node("w3")]
    settled(api, nodes={"w1": 8, "w3": 0})


def test_what_a_job_does_not_need_is_not_waited_for_and_the_policy_is_quoted(api: Cluster) -> None:
    error = {"type": "Error", "status": "True", "reason": "OperandNotReady", "message": "state-dcgm-exporter"}
    api.objects[POLICIES] = [policy("notReady", error)]
    said = settled(api)[-1]
    assert said.endswith("; ClusterPolicy cluster-policy: notReady; OperandNotReady: state-dcgm-exporter")


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"waiting": {"reason": "CrashLoopBackOff"}}, "nvidia-operator-validator-w3: CrashLoopBackOff"),
        # A validation of the driver waits for it.
        ({"waiting": {"reason": "PodInitializing"}}, "nvidia-operator-validator-w3 is not Ready"),
    ],
)
def test_what_is_broken_on_another_node_is_a_remark(api: Cluster, state: JsonObject, text: str) -> None:
    api.objects[POLICIES] = [policy("notReady")]
    broken = made.operand("nvidia-operator-validator", "w3", ready=False)
    broken["status"]["containerStatuses"][0]["state"] = state
    api.objects[PODS] += [made.operand(made.TOOLKIT, "w3"), broken]
    said = settled(api)[-1]
    assert said.startswith("nvidia.com/gpu: 2/2 nodes ready; ClusterPolicy cluster-policy: notReady; ")
    assert f"; not waited for: w3: {text}" in said


def test_the_toolkit_s_signal_is_waited_for_on_the_node_that_is_named(api: Cluster) -> None:
    clock = Clock()
    api.objects[made.NODE_LEASES] = [made.renewed("w1", "01:00"), made.renewed("w2", "00:39")]
    clock.at(20, lambda: api.objects[made.NODE_LEASES].append(made.renewed("w2", "00:41")))
    said = settled(api, clock)
    assert any("waiting for the agent on w2, which nvidia-container-toolkit-ctr may" in line for line in said)
    assert 20 < clock.time < 23


def test_a_node_that_was_not_ready_after_the_toolkit_s_start_is_waited_for_from_then_on(api: Cluster) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:45Z"}
    api.objects[NODES][0]["status"]["conditions"] = [ready]
    assert "waiting for the agent on w1" in pending(api)
