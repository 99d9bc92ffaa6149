"""Waiting for devices: what counts as enough, when it counts, and the message when the time is over."""

import re
from functools import partial
from typing import Any

import pytest

from busbar.exits import Failed
from busbar.kube.allocatable import AllocatableSpec, PolicySpec, policy_state_of, shortfalls, wait
from tests.support.kube_cluster import Clock, Cluster, node, pod, warning

NODES = "/api/v1/nodes"
POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
POLICY = PolicySpec(
    kind="ClusterPolicy", path=POLICIES, must_be_ready=True, empty_reasons=frozenset({"NoGPUNodes"})
)


def spec(**changes: Any) -> AllocatableSpec:
    return AllocatableSpec(
        **{"resource": "nvidia.com/gpu", "nodes": {"w1": 8, "w2": 8}, "deadline_seconds": 100, **changes}
    )


def policy(state: str, *conditions: dict[str, Any]) -> dict[str, Any]:
    status = {"state": state, "conditions": list(conditions)}
    return {"metadata": {"name": "cluster-policy"}, "status": status}


def gpus(name: str, count: int, **more: Any) -> Any:
    return node(name, nvidia_com__gpu=str(count), **more)


W1 = gpus("w1", 8)
ALL, ONE_LESS = [W1, gpus("w2", 8)], [W1, gpus("w2", 0)]
RESTARTED = [W1, gpus("w2", 8, ready=False)]


def upgrading(state: str, skip: str = "false", driver: str = "gpu") -> list[Any]:
    """As the operators label the nodes whose driver in a container they upgrade, one node after another."""
    label = f"nvidia.com/{driver}-driver-upgrade"
    labels = {f"{label}-state": state, f"{label}.skip": skip}
    return [W1, gpus("w2", 8) | {"metadata": {"name": "w2", "labels": labels}}]


TURN = {0: upgrading("upgrade-required"), 20: upgrading("drain-required"), 40: upgrading("upgrade-done")}
OF_HCAS = {0: upgrading("pod-deletion-required", driver="ofed"), 40: ALL}
STATES: dict[str, tuple[dict[int, Any], dict[str, Any], int]] = {
    "all come": ({0: ONE_LESS, 20: ALL}, {"stable_seconds": 10}, 30),
    "one goes again": ({0: ALL, 4: ONE_LESS, 50: ALL}, {"stable_seconds": 10}, 60),
    "the toolkit restarts an agent, by default": ({0: ALL, 20: RESTARTED, 33: ALL}, {}, 63),
    "an operator upgrades the driver later there": (TURN, {"stable_seconds": 10}, 50),
    "the other operator does": (OF_HCAS, {"stable_seconds": 10}, 50),
    "an administrator keeps the driver": (
        {0: upgrading("upgrade-required", "true")},
        {"stable_seconds": 1},
        1,
    ),
}


@pytest.mark.parametrize(("states", "changes", "earliest"), STATES.values(), ids=STATES)
def test_it_returns_once_every_worker_has_offered_its_gpus_for_the_stable_time(
    states: dict[int, Any], changes: dict[str, Any], earliest: int
) -> None:
    clock, api = Clock(), Cluster({NODES: states[0]})
    for seconds, nodes in states.items():
        clock.at(seconds, partial(api.objects.update, {NODES: nodes}))
    wait(api, spec(**changes), clock, lambda _: None)
    assert earliest <= clock.time < earliest + 4


def test_at_the_deadline_the_message_names_the_node_what_it_has_and_the_operators_status() -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    containers = [{"name": "plugin", "state": state}]
    reason = {"reason": "OperandNotReady", "message": "state-device-plugin"}
    objects = {
        NODES: [W1, node("w2")],
        POLICIES: [policy("notReady", {"type": "Error", "status": "True", **reason})],
        "/api/v1/namespaces/gpu-operator/pods": [
            pod("plugin-x", phase="Pending", containerStatuses=containers)
        ],
        "/api/v1/namespaces/gpu-operator/events": [warning("plugin-x", "Failed", "pull access denied")],
    }
    of_operator = spec(policy=POLICY, namespace="gpu-operator", fix="restart the device plugin")
    with pytest.raises(Failed) as failure:
        wait(Cluster(objects), of_operator, Clock(), lambda _: None)
    for text in (
        "nvidia.com/gpu: timed out after 100 s: 1 of 2 nodes do not offer what their pool expects",
        "w2: 0 allocatable, 8 expected (no device plugin has registered this resource)",
        "ClusterPolicy cluster-policy: notReady; OperandNotReady: state-device-plugin",
        "plugin-x: ImagePullBackOff: container plugin: no such image",
        "plugin-x: Failed: pull access denied",
        "Fix: restart the device plugin",
    ):
        assert text in str(failure.value)


def test_a_driver_whose_upgrade_has_failed_is_named_though_the_node_offers_its_gpus() -> None:
    named = "upgrade of the driver (label nvidia.com/*-driver-upgrade-state) on w2 (upgrade-failed)"
    with pytest.raises(Failed, match=re.escape(named)):
        wait(Cluster({NODES: upgrading("upgrade-failed")}), spec(), Clock(), lambda _: None)


def test_a_cluster_policy_that_is_ready_because_it_saw_no_gpu_is_not_ready() -> None:
    saw_none = policy("ready", {"type": "Ready", "status": "True", "reason": "NoGPUNodes"})
    with pytest.raises(Failed, match="NoGPUNodes"):
        wait(Cluster({NODES: ALL, POLICIES: [saw_none]}), spec(policy=POLICY), Clock(), lambda _: None)


def test_a_policy_names_the_parts_that_are_not_ready_and_none_that_it_leaves_out() -> None:
    parts = [
        {"name": "state-OFED", "state": "ignore"},
        {"name": "state-multus-cni", "state": "ready"},
        {"name": "state-SRIOV-device-plugin", "state": "notReady", "message": "no image"},
    ]
    policy = {"metadata": {"name": "nic"}, "status": {"state": "notReady", "appliedStates": parts}}
    found = policy_state_of(POLICY.model_copy(update={"kind": "NicClusterPolicy"}), policy)
    assert found.summary == "NicClusterPolicy nic: notReady; state-SRIOV-device-plugin is notReady (no image)"


@pytest.mark.parametrize(
    ("observed", "ready", "remark"),
    [(3, True, ""), (2, False, "; the operator has not processed its last change")],
)
def test_a_policy_is_ready_with_conditions_of_its_generation(observed: int, ready: bool, remark: str) -> None:
    # As the Network Operator 26.7 leaves it when all runs.
    reasons = {"SRIOVDevicePluginReady": "ComponentReady", "Ready": "AllComponentsReady"}
    conditions = [
        {"type": kind, "status": "True", "reason": reason, "message": "", "observedGeneration": observed}
        for kind, reason in reasons.items()
    ]
    nic = policy("ready", *conditions) | {"metadata": {"name": "nic", "generation": 3}}
    found = policy_state_of(POLICY.model_copy(update={"kind": "NicClusterPolicy"}), nic)
    assert (found.ready, found.summary) == (ready, f"NicClusterPolicy nic: ready{remark}")


def test_a_site_without_a_cluster_policy_is_judged_by_its_devices_alone() -> None:
    wait(Cluster({NODES: ALL}), spec(policy=POLICY), Clock(), lambda _: None)


def labelled(found: Any, **labels: str) -> list[Any]:
    return [found | {"metadata": {"name": "w2", "labels": labels}}]


NO_PLUGIN = "no device plugin runs there: the node lacks operator.mofed.wait=false"
WAITS = {"pci-15b3.present": "true", "operator.mofed.wait": "true"}
SHORTFALLS: dict[str, tuple[list[Any], str]] = {
    "no label of its operator": (labelled(node("w2")), f"{NO_PLUGIN} and pci-15b3.present=true"),
    "another value of a label": (labelled(node("w2"), **WAITS), NO_PLUGIN),
    "some devices without the labels": (labelled(gpus("w2", 7)), "the device plugin found no more"),
    "absent": ([], "the cluster has no node with this name"),
    "not ready": ([gpus("w2", 8, ready=False)], "the node is not Ready: kubelet stopped"),
    "one GPU has fallen off the bus": (
        [gpus("w2", 7, capacity={"nvidia.com/gpu": "8"})],
        "the device plugin reports 1 of 8 as unhealthy",
    ),
    "a ninth HCA is the management port": (
        [gpus("w2", 9)],
        "more than the pool has: the device plugin also counts other devices",
    ),
}


@pytest.mark.parametrize(("w2", "reason"), SHORTFALLS.values(), ids=SHORTFALLS)
def test_a_shortfall_says_why_as_far_as_the_node_tells(w2: list[Any], reason: str) -> None:
    needs = spec(labels={"pci-15b3.present": "true", "operator.mofed.wait": "false"})
    assert [each.reason for each in shortfalls([W1, *w2], needs)] == [reason]
