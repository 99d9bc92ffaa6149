"""From the facts of a cluster to a job: what is read, what has to be given, what keeps it from running."""

from typing import Any

import pytest

from busbar.fabric.measure import CannotMeasure, Plan, Request, plan, read_facts
from busbar.judge.nccl import Expectation
from busbar.kube.client import ApiError
from busbar.kube.gpus import MEASURED_BY
from busbar.manifests import mpijob
from tests.support.kube_cluster import unreachable
from tests.unit.fabric.measure.foreign import GPU, H100, HCA, Foreign, gpu_node, holder

A100 = "NVIDIA-A100-SXM4-80GB"


def planned(cluster: Foreign, nodes: str | None = None, **asked: Any) -> Plan:
    return plan(read_facts(cluster, nodes), Request(nodes=nodes, **asked), "run-1")


def refused(cluster: Foreign, nodes: str | None = None, **asked: Any) -> list[str]:
    with pytest.raises(CannotMeasure) as raised:
        planned(cluster, nodes, **asked)
    return str(raised.value).splitlines()


def sources(made: Plan) -> dict[str, tuple[str, str]]:
    return {name: (value, source) for name, value, source in made.sources}


def two(**more: Any) -> Foreign:
    return Foreign(gpu_node("gpu-1", **more), gpu_node("gpu-2", **more))


def test_of_two_h100_nodes_with_eight_hostdevs_nothing_has_to_be_given() -> None:
    made = planned(two(taints=("nvidia.com/gpu=present:NoSchedule",)))
    assert sources(made) == {
        "nodes": ("gpu-1, gpu-2", "cluster: all Nodes with nvidia.com/gpu"),
        "gpus": ("8", "cluster: allocatable nvidia.com/gpu"),
        "profile": ("h100-ib-8x400", "cluster: the only profile that fits"),
        "hcas": ("nvidia.com/hostdev=8", "profile"),
        "rails": ("8", "profile"),
        "rate_gbps": ("400", "profile"),
        "tolerations": ("nvidia.com/gpu=present:NoSchedule", "cluster: taints of the Nodes"),
        "runtimeClass": ("nvidia", "cluster"),
        "namespace": ("busbar-run-1", "created for this run"),
        "transport": ("gpudirect-rdma", "profile"),
        "image": (made.job.image, "default of busbar"),
        "min_bytes": ("512 MiB", "profile"),
        "max_bytes": ("8 GiB", "profile"),
        "expected": ("computed", "rails, rate and GPUs"),
    }
    assert (made.job.nodes, made.job.hca_resources) == (("gpu-1", "gpu-2"), {HCA: 8})
    expectation = Expectation.model_validate(made.collect_spec("folder").expectation)
    assert (expectation.nodes, expectation.gpus_per_node, expectation.gpu) == (2, 8, "H100")


def test_what_was_given_and_what_is_a_default_is_said_of_the_job_too() -> None:
    given = {"max_bytes": "1G", "expected_busbw_gbps": 12.0, "transport": "socket"}
    found = sources(planned(two(hcas={}), validation=given))
    assert found["max_bytes"] == ("1 GiB", "given")
    assert found["min_bytes"] == ("512 MiB", "default of busbar")
    assert found["expected"] == ("12", "given, GB/s")
    assert found["transport"] == ("socket", "given")
    del given["expected_busbw_gbps"]
    assert "expected" not in sources(planned(two(hcas={}), validation=given)), "TCP has no line rate"


def test_the_job_is_that_of_a_stack_with_the_label_of_the_run_on_all_objects_and_pods() -> None:
    made = planned(two())
    (_, namespace), (path, job) = made.objects({"busbar/nccl-run-until": "me"})
    assert path == "/apis/kubeflow.org/v2beta1/namespaces/busbar-run-1/mpijobs"
    templates = [each["template"] for each in job["spec"]["mpiReplicaSpecs"].values()]
    marked = [namespace, job, *templates]
    assert [each["metadata"]["labels"].pop("busbar/nccl-run") for each in marked] == ["run-1"] * 4
    assert job["metadata"]["annotations"].pop("busbar/nccl-run-until") == "me"
    assert job == mpijob.render(made.job)


def test_over_tcp_the_report_names_no_rails_that_nobody_has_given() -> None:
    made = planned(two(hcas={}), validation={"transport": "socket"})
    expectation = made.collect_spec("folder").expectation
    assert made.job.hca_resources == {}
    assert (expectation["rails"], expectation["rate_gbps"]) == (None, None)


@pytest.mark.parametrize(
    ("product", "gpus", "hcas", "profile"),
    [
        ("NVIDIA-H100-80GB-HBM3", 8, {"rdma/ib": 1}, "h100-coreweave"),
        ("NVIDIA-H100-80GB-HBM3", 8, {"vpc.amazonaws.com/efa": 32}, "efa"),
        ("NVIDIA-A100-SXM4-80GB", 8, {"rdma/ib": 1000}, "a100-ib-8x200"),
        ("NVIDIA-B200", 8, {"rdma/ib": 1}, "b200-ib-8x400"),
    ],
)
def test_the_only_fitting_profile_is_chosen(
    product: str, gpus: int, hcas: dict[str, int], profile: str
) -> None:
    made = planned(two(product=product, gpus=gpus, hcas=hcas))
    assert made.validation.profile == profile


def test_a_profile_for_tcp_on_nodes_with_hcas_needs_the_transport_in_writing() -> None:
    cluster = two(product=A100)
    [finding] = refused(cluster, validation={"profile": "a100-noib"})
    assert finding.startswith("profile a100-noib is for TCP, the Nodes offer nvidia.com/hostdev. Fix: ")
    asked = {"profile": "a100-noib", "transport": "socket"}
    assert planned(cluster, validation=asked).job.transport == "socket"


ONE_NODE = "one Node: NVLink inside it is measured, and no fabric"


@pytest.mark.parametrize("asked", [{"nodes": "gpu-1"}, {"expect_nodes": 1}], ids=str)
def test_one_node_that_was_asked_for_is_measured_with_a_note(asked: dict[str, Any]) -> None:
    assert planned(Foreign(gpu_node("gpu-1")), **asked).notes == [ONE_NODE]


def held(*pods: Any) -> Foreign:
    cluster = two()
    for pod in pods:
        cluster.hold(pod)
    return cluster


RATE = {"rails": 8, "rate_gbps": 400}
ONE = Foreign(gpu_node("gpu-1", labels={"pool": "a"}))
NO_FABRIC = "one Node, gpu-1, has no fabric to measure. Fix: for NVLink inside it, --nodes gpu-1, or"
HELD = holder("gpu-2", "train-0", 6), holder("gpu-2", "train-1", 2)
SLURM = holder("gpu-2", "slurmd-0", 8)
SLURM["metadata"]["annotations"] = {MEASURED_BY: "busbar measure STACK --project slurm"}
SEVERAL, TESTS = holder("gpu-1", "train-0", 2), holder("gpu-1", "ib-test", 1, HCA)
SEVERAL["spec"]["containers"] += [{"resources": {"requests": {GPU: "1"}}}, {}]
OF_B200 = {"validation": {"profile": "b200-ib-8x400"}, "hcas": {HCA: 8}}
OF_OTHERS = Foreign(gpu_node("gpu-1"), gpu_node("gpu-2", gpus=7), gpu_node("gpu-3", product=A100))
NOT_READY = Foreign(*(gpu_node(f"gpu-{number}", ready=number > 3) for number in range(1, 17)))
SENTINEL = {"k8saas.nvidia.com/cordon-by": "NVSentinel"}


def cordoned(**labels: str) -> Foreign:
    return Foreign(gpu_node("gpu-1"), gpu_node("gpu-2", cordoned=True, labels=labels))


@pytest.mark.parametrize(
    ("cluster", "asked", "finding"),
    [
        (ONE, {}, NO_FABRIC),
        (ONE, {"nodes": "pool=a"}, NO_FABRIC),
        (two(), {"nodes": "pool=b"}, "no Node of --nodes pool=b. Fix: see kubectl get nodes"),
        (two(), {"nodes": "gpu-1,gpu-9"}, "gpu-9: no such Node"),
        (two(), {"expect_nodes": 1}, "2 Nodes can be measured (gpu-1, gpu-2), --expect-nodes is 1."),
        (two(), {"nodes": "gpu-1,gpu-2", "expect_nodes": 3}, "2 Nodes can be measured (gpu-1, gpu-2), --exp"),
        (NOT_READY, {}, "3 of 16 Nodes with GPUs cannot be measured: gpu-1 (not Ready), gpu-2 ("),
        (cordoned(), {"nodes": "gpu-1,gpu-2"}, "gpu-2 is cordoned. Fix: exclude it with --nodes"),
        (cordoned(**SENTINEL), {"nodes": "gpu-1,gpu-2"}, "gpu-2 is cordoned by NVSentinel. Fix: exclude it"),
        # A device plugin that is not there yet must not switch the gate off.
        (two(product="NVIDIA-A40", hcas={}), RATE, "no known HCA resource (the Nodes offer: none)."),
        (two(), OF_B200, "profile b200-ib-8x400 is for B200, the Nodes have NVIDIA-H100-80GB-HBM3"),
        (OF_OTHERS, {}, "the Nodes differ (8 x NVIDIA-H100-80GB-HBM3: gpu-1; 7 x NVIDIA-H100-80GB-HBM3: gpu"),
        (held(*HELD), {}, "gpu-2: 0 of 8 nvidia.com/gpu are free, held by ml/train-0 (6), ml/train-1 (2)."),
        (held(SLURM), {}, "gpu-2: 0 of 8 nvidia.com/gpu are free, held by ml/slurmd-0 [measure with `busbar"),
        (held(TESTS), {}, "gpu-1: 7 of 8 nvidia.com/hostdev are free, held by ml/ib-test (1)"),
        # The containers of a pod hold their GPUs together.
        (held(SEVERAL), {}, "gpu-1: 5 of 8 nvidia.com/gpu are free, held by ml/train-0 (3)."),
    ],
)
def test_what_keeps_a_job_from_running_is_told(cluster: Foreign, asked: dict[str, Any], finding: str) -> None:
    assert refused(cluster, **asked)[-1].startswith(finding)


def test_of_several_fitting_profiles_none_is_chosen_and_all_are_named() -> None:
    found = two(product="NVIDIA-GB200", gpus=4, hcas={"rdma/ib": 1})
    made = planned(found, rails=4, rate_gbps=400)
    assert made.validation.profile is None
    assert made.notes == ["several profiles fit (gb200-multirack, gb200-nvl72): select one with --profile"]


def test_without_a_profile_the_rate_of_a_rail_must_be_given_and_the_rest_is_read() -> None:
    h200 = two(product="NVIDIA-H200")
    [finding] = refused(h200)
    assert "their rate are not known" in finding and "--rate-gbps" in finding
    made = planned(h200, rate_gbps=400)
    assert (made.job.rails, made.job.rate_gbps, made.job.gpu) == (8, 400, "H200")
    assert sources(made)["rails"] == ("8", "the number of HCAs")


def test_a_shared_resource_is_asked_for_once_and_its_units_are_no_rails() -> None:
    made = planned(two(hcas={"rdma/hca_shared_devices_a": 63}), rails=8, rate_gbps=400)
    assert made.job.hca_resources == {"rdma/hca_shared_devices_a": 1}


@pytest.mark.parametrize(
    ("hcas", "found"),
    [
        ({"example.com/nic": 8}, "no known HCA resource (the Nodes offer: example.com/nic)"),
        ({HCA: 8, "rdma/ib": 1}, "several resources are HCAs: nvidia.com/hostdev, rdma/ib"),
    ],
)
def test_hcas_that_cannot_be_told_are_named_and_must_be_given(hcas: dict[str, int], found: str) -> None:
    cluster = two(product="NVIDIA-H200", hcas=hcas)
    [finding] = refused(cluster, rails=8, rate_gbps=400)
    assert finding.startswith(found) and "--hca" in finding
    given = {name: units for name, units in hcas.items() if units == 8}
    assert planned(cluster, rails=8, rate_gbps=400, hcas=given).job.hca_resources == given


def test_gpus_that_are_left_over_are_enough_for_a_smaller_measurement() -> None:
    cluster = two()
    cluster.hold(holder("gpu-2", "train-0", 4))
    assert planned(cluster, gpus=4, rails=8, rate_gbps=400).job.gpus_per_node == 4


def test_pods_that_may_not_be_listed_are_a_note() -> None:
    class Guarded(Foreign):
        def list(self, path: str, **query: str) -> Any:
            if path in ("/api/v1/pods", "/apis/node.k8s.io/v1/runtimeclasses"):
                raise ApiError(f"GET {path}", 403, "forbidden")
            return super().list(path, **query)

    made = planned(Guarded(gpu_node("gpu-1"), gpu_node("gpu-2")))
    assert made.notes == ["pods of other namespaces may not be listed: which GPUs are held is not known"]
    assert made.job.runtime_class == "nvidia", "that of the profile"


def without_gpus(name: str, product: str = H100) -> Any:
    """A Node whose device plugin offers nothing any more."""
    node = gpu_node(name, gpus=0, product=product)
    if product:
        del node["status"]["allocatable"][GPU]
    return node


PRESSURE = "node.kubernetes.io/disk-pressure=:NoSchedule"


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (gpu_node("gpu-3", cordoned=True), "cordoned"),
        (gpu_node("gpu-3", ready=False), "not Ready"),
        (gpu_node("gpu-3", taints=(PRESSURE,)), PRESSURE),
        (without_gpus("gpu-3"), "0 nvidia.com/gpu allocatable"),
        (without_gpus("gpu-3", product=""), "0 nvidia.com/gpu allocatable"),
    ],
)
def test_a_node_that_cannot_be_measured_must_be_left_out_by_name_or_number(node: Any, why: str) -> None:
    cluster = Foreign(gpu_node("gpu-1"), gpu_node("gpu-2"), node)
    [finding] = refused(cluster)
    assert finding.startswith(f"1 of 3 Nodes with GPUs cannot be measured: gpu-3 ({why}). Fix: ")
    assert "--expect-nodes 2" in finding and "--nodes gpu-1,gpu-2" in finding
    assert planned(cluster, "gpu-1,gpu-2").notes == []
    made = planned(cluster, expect_nodes=2)
    assert (made.job.nodes, made.notes) == (("gpu-1", "gpu-2"), [f"gpu-3 is left out: {why}"])


def test_a_node_in_quarantine_is_left_out_with_a_note_and_measured_by_its_name() -> None:
    held = gpu_node("gpu-3", taints=("busbar/quarantine=true:NoSchedule",), labels={"pool": "a"})
    held["metadata"]["annotations"] = {"busbar/quarantine": '{"why": "fan"}'}
    cluster = Foreign(*(gpu_node(f"gpu-{number}", labels={"pool": "a"}) for number in (1, 2)), held)
    made = planned(cluster)
    assert planned(cluster, "pool=a").job.nodes == made.job.nodes, "a selector is not its name"
    assert (made.job.nodes, made.notes) == (("gpu-1", "gpu-2"), ["gpu-3 is left out: in quarantine: fan"])
    held["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    assert planned(cluster).notes == made.notes, "also where it is not Ready"
    held["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert planned(cluster, "gpu-1,gpu-3").job.nodes == ("gpu-1", "gpu-3")


def cpu_node(name: str) -> Any:
    node = without_gpus(name)
    del node["metadata"]["labels"]["nvidia.com/gpu.product"]
    return node


def test_nodes_with_gpus_are_measured_or_those_that_a_selector_chooses() -> None:
    first, third = (gpu_node(name, labels={"pool": "a"}) for name in ("gpu-1", "gpu-3"))
    cluster = Foreign(first, gpu_node("gpu-2"), third, cpu_node("cpu-1"))
    assert planned(cluster).job.nodes == ("gpu-1", "gpu-2", "gpu-3")
    assert planned(cluster, "pool=a").job.nodes == ("gpu-1", "gpu-3")


def test_a_cluster_without_gpus_is_refused() -> None:
    assert refused(Foreign(cpu_node("cpu-1")))[-1].startswith("no usable Node with nvidia.com/gpu.")


def test_the_job_selects_nodes_by_their_host_names_where_these_are_not_the_names_of_the_nodes() -> None:
    cluster = Foreign(gpu_node("node-a", labels={"kubernetes.io/hostname": "ip-10-0-0-1"}))
    assert planned(cluster, "node-a").job.nodes == ("ip-10-0-0-1",)


def test_a_cluster_without_the_runtime_class_gets_pods_without_one() -> None:
    cluster = two()
    del cluster.objects["/apis/node.k8s.io/v1/runtimeclasses/nvidia"]
    assert planned(cluster).job.runtime_class == ""
    assert planned(cluster, validation={"runtime_class": "mine"}).job.runtime_class == "mine"


@pytest.mark.parametrize("served", [{}, {"v1": ["mpijobs"]}, {"v2beta1": ["others"]}], ids=str)
def test_a_cluster_without_the_mpi_operator_is_refused_with_a_fix(served: dict[str, list[str]]) -> None:
    cluster = Foreign(gpu_node("gpu-1"), gpu_node("gpu-2"), operator=False)
    for version, kinds in served.items():
        cluster.serve(version, *kinds)
    [finding] = refused(cluster)
    assert finding.startswith("the API serves no MPIJobs of kubeflow.org/v2beta1. Fix: install the MPI Oper")
    assert "/mpi-operator/v0.8.0/deploy/v2beta1/mpi-operator.yaml" in finding


def test_all_that_keeps_the_job_from_running_is_said_at_once() -> None:
    cluster = Foreign(gpu_node("gpu-1"), gpu_node("gpu-2"), operator=False)
    cluster.hold(holder("gpu-1", "train-0", 8))
    assert [line.split()[0] for line in refused(cluster)] == ["the", "gpu-1:"]


@pytest.mark.parametrize(
    ("product", "settings", "level"),
    [
        (H100, {"transport": "socket"}, "baseline"),
        (A100, {"transport": "socket", "profile": "a100-ib-8x200-gdrcopy"}, "privileged"),  # /dev/gdrdrv
        (H100, {}, "privileged"),
    ],
)
def test_a_namespace_has_the_level_its_pods_need(product: str, settings: dict[str, Any], level: str) -> None:
    (path, namespace), _ = planned(two(product=product), validation=settings).objects({})
    labels = namespace["metadata"]["labels"]
    assert path == "/api/v1/namespaces"
    assert [labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")] == [
        level
    ] * 3


@pytest.mark.parametrize("silent", ["nodes", "pods", "runtimeclasses", "v2beta1"])
def test_an_api_that_does_not_answer_is_no_plan(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = two()
    for name in ("get", "list"):
        ask = getattr(cluster, name)

        def answer(path: str, ask: Any = ask, **query: str) -> Any:
            if path.endswith(f"/{silent}"):
                raise unreachable(path)
            return ask(path, **query)

        monkeypatch.setattr(cluster, name, answer)
    with pytest.raises(ApiError):
        read_facts(cluster, None)
