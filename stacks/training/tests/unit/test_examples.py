"""stacks/training/examples: valid by the published CRDs, and right in what those do not check."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.training.tests.support import training_operator_crd
from tests.unit.charts.published import MPI_OPERATOR_RELEASE, complaints, published_crd

FOLDER = Path(__file__).resolve().parents[2] / "examples"
CRDS = {
    "PyTorchJob": (training_operator_crd(), "v1"),
    "MPIJob": (published_crd(*MPI_OPERATOR_RELEASE, "MPIJob"), "v2beta1"),
    "TrainJob": (published_crd("kubeflow-trainer", "v2.3.0", "TrainJob"), "v1alpha1"),
}
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.yaml"))
# Their pods are spelled out here; those of a TrainJob are in the runtime of the pool.
SPELLED_OUT = ("pytorchjob.yaml", "elastic.yaml", "mpijob.yaml")


def example(name: str) -> dict[str, Any]:
    found = yaml.safe_load((FOLDER / name).read_text())
    assert isinstance(found, dict)
    return found


def replicas(name: str) -> dict[str, Any]:
    spec = example(name)["spec"]
    found: dict[str, Any] = spec.get("pytorchReplicaSpecs") or spec["mpiReplicaSpecs"]
    return found


def workers(name: str) -> list[dict[str, Any]]:
    return [each["template"]["spec"] for role, each in replicas(name).items() if role != "Launcher"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_valid_by_the_published_crd(name: str) -> None:
    found = example(name)
    assert complaints(*CRDS[found["kind"]], found) == []


@pytest.mark.parametrize("name", SPELLED_OUT)
def test_a_pod_has_a_worker_of_its_own_rdma_a_large_shared_memory_and_the_checkpoints(name: str) -> None:
    job = example(name)["metadata"]["name"]
    for pod in workers(name):
        [container] = pod["containers"]
        limits = container["resources"]["limits"]
        assert (limits["nvidia.com/gpu"], limits["nvidia.com/hostdev"]) == (8, 8)
        assert container["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"]}
        assert pod["runtimeClassName"] == "nvidia"
        [term] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"]["training.kubeflow.org/job-name"] == job
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert volumes.keys() == mounts.keys()
        assert (mounts["shm"], mounts["checkpoints"]) == ("/dev/shm", "/checkpoints")
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        if name != "mpijob.yaml":
            # The operator looks for this name. With torchrun every start of the ranks has a store of its own.
            assert container["name"] == "pytorch"
            env = {each["name"]: each["value"] for each in container["env"]}
            assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


@pytest.mark.parametrize("name", SPELLED_OUT)
def test_a_job_is_started_again_until_a_deadline_and_its_pods_release_their_volumes(name: str) -> None:
    policy = example(name)["spec"]["runPolicy"]
    assert policy["activeDeadlineSeconds"] > 0 and policy["backoffLimit"] > 0
    assert policy["cleanPodPolicy"] == "Running"


def test_master_and_worker_run_the_same_pod_and_a_job_of_mpirun_has_a_rank_per_gpu() -> None:
    found, mpi = replicas("pytorchjob.yaml"), example("mpijob.yaml")["spec"]
    assert found["Master"]["template"] == found["Worker"]["template"]
    [script] = mpi["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["args"]
    assert f" -np {mpi['mpiReplicaSpecs']['Worker']['replicas'] * mpi['slotsPerWorker']} " in script


def test_the_readme_lists_every_example_and_no_other() -> None:
    text = (FOLDER / "README.md").read_text()
    assert [name for name in EXAMPLES if f"[{name}]({name})" not in text] == []
