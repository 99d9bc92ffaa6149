"""From a pool of a stack and its cluster to a job: that of an update, on the Nodes that can run it."""

from dataclasses import replace
from typing import Any

import pytest

from busbar.config import load
from busbar.fabric.measure import CannotMeasure, Plan, plan_pool, read_facts
from busbar.hosts.inventory import Inventory
from busbar.manifests import mpijob, nccljob
from tests.support.clusters import all_operators, site
from tests.unit.fabric.measure.foreign import HCA, Foreign, gpu_node, holder

QUARANTINE = "busbar/quarantine=true:NoSchedule"
SENTINEL = {"k8saas.nvidia.com/cordon-by": "NVSentinel", "k8saas.nvidia.com/cordon-reason": "GPU-fatal"}
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def inventory(workers: int = 3, quarantine: dict[str, str] | None = None, **sections: Any) -> Inventory:
    cluster = site(workers={"h100": workers}, **all_operators(enabled=True), **sections)
    for each in cluster["hosts"]["workers"]:
        if reason := (quarantine or {}).get(each["name"]):
            each["quarantine"] = reason
    return Inventory.of(load(cluster))


def nodes(workers: int = 3, **more: Any) -> Foreign:
    return Foreign(*(gpu_node(f"gpu-{number}", **more) for number in range(1, workers + 1)))


def planned(cluster: Foreign, found: Inventory, idle: bool = False, **asked: Any) -> Plan:
    return plan_pool(read_facts(cluster, None, idle=idle), found, "h100", "run-1", idle=idle, **asked)


def refused(cluster: Foreign, found: Inventory, **asked: Any) -> list[str]:
    with pytest.raises(CannotMeasure) as raised:
        planned(cluster, found, **asked)
    return str(raised.value).splitlines()


def problem(cluster: Foreign, found: Inventory, **asked: Any) -> str:
    count, text = refused(cluster, found, **asked)
    assert count.startswith("1 of 3 workers cannot be measured now. Fix: repair")
    return text


def test_the_job_and_its_expectation_are_those_of_an_update_under_the_name_of_the_run() -> None:
    found = inventory()
    made = planned(nodes(), found)
    of_update = nccljob.resolve(found.cluster, "h100", ["gpu-1", "gpu-2", "gpu-3"])
    assert made.job == replace(of_update, pool="run-1")
    expectation = made.collect_spec("folder").expectation
    assert (expectation["rails"], expectation["nodes"], expectation["gpu"]) == (8, 3, "H100")
    [(path, job)] = made.objects({})
    assert path == "/apis/kubeflow.org/v2beta1/namespaces/busbar-validation/mpijobs"
    assert job["metadata"]["labels"]["busbar/nccl-run"] == "run-1"


def test_over_tcp_the_expectation_keeps_the_rails_of_the_pool_as_an_update_does() -> None:
    found = inventory(validation={"transport": "socket"})
    assert planned(nodes(), found).collect_spec("folder").expectation["rails"] == 8


def test_workers_in_quarantine_are_left_out_and_named() -> None:
    made = planned(nodes(), inventory(quarantine={"gpu-2": "rail 3 slow"}))
    assert made.job.nodes == ("gpu-1", "gpu-3")
    assert made.notes == ["in quarantine, left out: gpu-2"]


def test_a_worker_in_quarantine_that_is_named_is_measured_in_spite_of_its_taint() -> None:
    cluster = Foreign(gpu_node("gpu-1"), gpu_node("gpu-2", taints=(QUARANTINE,)))
    made = planned(cluster, inventory(2, {"gpu-2": "rail 3 slow"}), nodes=["gpu-1", "gpu-2"])
    worker = mpijob.render(made.job)["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    assert "busbar/quarantine" in [each["key"] for each in worker["tolerations"]]
    assert made.notes == []


@pytest.mark.parametrize(
    ("node", "finding"),
    [
        (gpu_node("gpu-2", ready=False), "gpu-2 is not Ready"),
        (gpu_node("gpu-2", cordoned=True), "gpu-2 is cordoned"),
        (gpu_node("gpu-2", gpus=7), "gpu-2: 7 nvidia.com/gpu allocatable, 8 requested"),
        (gpu_node("gpu-2", hcas={HCA: 7}), "gpu-2: 7 nvidia.com/hostdev allocatable, 8 requested"),
        (
            gpu_node("gpu-2", taints=("team=ml:NoSchedule",)),
            "gpu-2 has the taint team=ml:NoSchedule, which is",
        ),
        (
            gpu_node("gpu-2", taints=("nvidia.com/gpu-error=fatal:NoSchedule",), labels=SENTINEL),
            "gpu-2 has the taint nvidia.com/gpu-error=fatal:NoSchedule of NVSentinel (GPU-fatal)",
        ),
        (gpu_node("gpu-9"), "gpu-2: no such Node"),
    ],
)
def test_a_worker_that_cannot_run_a_pod_is_named_or_left_out(node: dict[str, Any], finding: str) -> None:
    cluster = Foreign(gpu_node("gpu-1"), node, gpu_node("gpu-3"))
    assert problem(cluster, inventory()).startswith(finding)
    made = planned(cluster, inventory(), idle=True)
    assert made.job.nodes == ("gpu-1", "gpu-3")
    [note] = made.notes
    assert note.startswith(finding) and note.endswith("; left out")
    [missing] = made.missing
    assert missing.startswith(finding)


def test_taints_that_the_pods_tolerate_keep_no_worker_out() -> None:
    taints = ("nvidia.com/gpu=present:NoSchedule", "team=ml:PreferNoSchedule")
    assert planned(nodes(taints=taints), inventory(), idle=True).notes == []


def test_busy_workers_are_a_finding_with_their_pods_and_left_out_of_an_idle_run() -> None:
    cluster = nodes()
    cluster.hold(holder("gpu-1", "train-0", 1))
    assert problem(cluster, inventory()) == "gpu-1: 7 of 8 nvidia.com/gpu are free, held by ml/train-0 (1)"
    made = planned(cluster, inventory(), idle=True)
    assert (made.job.nodes, made.missing) == (("gpu-2", "gpu-3"), ()), "--idle asks for that"


def test_an_idle_run_needs_two_idle_workers_and_to_see_all_pods() -> None:
    cluster = nodes()
    facts = replace(read_facts(cluster, None), pods_known=False)
    with pytest.raises(CannotMeasure, match="no GPU is known to be free"):
        plan_pool(facts, inventory(), "h100", "run-1", idle=True)
    cluster.hold(holder("gpu-1", "train-0", 1))
    cluster.hold(holder("gpu-3", "train-1", 8))
    first, *busy = refused(cluster, inventory(), idle=True)
    assert first == "1 of 3 workers are idle, 2 are needed"
    assert [text.split(":")[0] for text in busy] == ["gpu-1", "gpu-3"]


def test_pods_of_an_idle_run_end_for_any_other_and_end_none() -> None:
    made = planned(nodes(), inventory(), idle=True)
    (where, priority), (_, job) = made.objects({})
    assert (where, priority["metadata"]["name"]) == (PRIORITY_CLASSES, "busbar-run-1")
    assert (priority["value"], priority["preemptionPolicy"]) == (-1000, "Never")
    assert priority["metadata"]["labels"]["busbar/nccl-run"] == "run-1"
    for replica in job["spec"]["mpiReplicaSpecs"].values():
        assert replica["template"]["spec"]["priorityClassName"] == "busbar-run-1"


def idle_pod(node: str) -> dict[str, Any]:
    pod = holder(node, "measure", 8)
    pod["metadata"]["labels"] = {"busbar/idle": "true"}
    return pod


def test_pods_of_an_idle_run_hold_their_gpus_only_against_another_idle_run() -> None:
    cluster = nodes()
    cluster.hold(idle_pod("gpu-1"))
    assert planned(cluster, inventory()).job.nodes == ("gpu-1", "gpu-2", "gpu-3")
    assert planned(cluster, inventory(), idle=True).job.nodes == ("gpu-2", "gpu-3")


@pytest.mark.parametrize(("asked", "deadline"), [(None, 900), (300, 300), (3600, 900)])
def test_a_deadline_shortens_that_of_the_stack(asked: int | None, deadline: int) -> None:
    found = inventory(validation={"deadline_seconds": 900})
    made = planned(nodes(), found, deadline_seconds=asked)
    assert mpijob.render(made.job)["spec"]["runPolicy"]["activeDeadlineSeconds"] == deadline


def test_a_stack_without_validation_has_no_namespace_for_it() -> None:
    [found] = refused(nodes(), inventory(validation={"enabled": False}))
    assert found.startswith("validation.enabled is false: the stack has no namespace busbar-validation.")
