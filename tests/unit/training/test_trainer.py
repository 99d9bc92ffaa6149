"""The runtime that TrainJobs refer to: a pod of it can use RDMA on a whole worker of its pool."""

from __future__ import annotations

from typing import Any

from busbar.outputs import ClusterOutputs
from busbar.training.target import targets
from busbar.training.trainer import torch_runtime
from tests.support import training as support
from tests.support.clusters import site
from tests.support.training import training

TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


def runtime(**site: Any) -> dict[str, Any]:
    [target] = targets(ClusterOutputs.from_dict(support.outputs(**site)), training()).values()
    return torch_runtime(target, "torch:1")


def pod(found: dict[str, Any]) -> dict[str, Any]:
    [job] = found["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == "node"
    spec: dict[str, Any] = job["template"]["spec"]["template"]["spec"]
    return spec


def container(found: dict[str, Any]) -> dict[str, Any]:
    [only] = pod(found)["containers"]
    made: dict[str, Any] = only
    return made


def test_a_pool_gets_a_runtime_by_its_name_that_the_kubeflow_sdk_lists() -> None:
    metadata = runtime()["metadata"]
    assert metadata["name"] == "busbar-torch-h100"
    assert metadata["labels"]["trainer.kubeflow.org/framework"] == "torch"


def test_a_job_that_says_nothing_uses_all_workers_of_the_pool() -> None:
    assert runtime()["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}


def test_trainer_finds_the_container_by_its_name_and_the_step_by_its_label() -> None:
    found = runtime()
    [job] = found["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert container(found)["name"] == "node"


def test_a_pod_has_all_gpus_and_hcas_shared_memory_and_the_right_to_lock_memory() -> None:
    found = container(runtime())
    assert found["resources"]["limits"] == {"nvidia.com/gpu": 8, "nvidia.com/hostdev": "8"}
    assert found["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert {"name": "shm", "mountPath": "/dev/shm"} in found["volumeMounts"]


def test_a_pod_tolerates_the_taints_of_its_pool_and_runs_on_its_workers_only() -> None:
    found = pod(runtime(pool={"taints": [TAINT]}))
    assert {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"} in found["tolerations"]
    [term] = found["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["values"] == ["gpu-1", "gpu-2"]


def test_pods_of_one_job_prefer_workers_near_each_other_the_nearest_level_most() -> None:
    hosts = site()["hosts"]
    for worker in hosts["workers"]:
        worker["topology"] = {"rail_group": "su03", "block": "b1"}
    terms = pod(runtime(hosts=hosts))["affinity"]["podAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert [(term["podAffinityTerm"]["topologyKey"], term["weight"]) for term in terms] == [
        ("fabric.topograph.run/tier-1", 1), ("fabric.topograph.run/tier-0", 2),
    ]  # fmt: skip
    assert {str(term["podAffinityTerm"]["matchLabelKeys"]) for term in terms} == {
        "['jobset.sigs.k8s.io/jobset-uid']"
    }


def test_without_a_topology_pods_have_no_affinity_to_each_other() -> None:
    assert set(pod(runtime())["affinity"]) == {"nodeAffinity"}


def test_nccl_has_the_settings_under_which_the_pool_was_measured() -> None:
    env = {
        each["name"]: each["value"]
        for each in container(runtime(validation={"profile": "h100-ib-8x400"}))["env"]
    }
    assert env["NCCL_IB_QPS_PER_CONNECTION"] == "2"
    assert "NCCL_DEBUG" not in env


def test_every_start_of_the_ranks_has_a_store_of_its_own() -> None:
    assert {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"} in container(runtime())["env"]


def test_devices_of_the_profile_are_mounted() -> None:
    found = runtime(validation={"profile": "a100-ib-8x200-gdrcopy"})
    paths = [volume["hostPath"]["path"] for volume in pod(found)["volumes"] if "hostPath" in volume]
    assert paths == ["/dev/gdrdrv"]


def test_nothing_that_a_train_job_may_not_set_is_in_the_environment_of_the_runtime() -> None:
    # The webhook of Trainer refuses PET_ variables; it sets them itself.
    assert not [each for each in container(runtime())["env"] if each["name"].startswith("PET_")]
