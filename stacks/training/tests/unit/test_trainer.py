"""The runtime that TrainJobs refer to: a pod of it can use RDMA on a whole worker of its pool."""

from __future__ import annotations

import shlex
from typing import Any

from busbar.outputs import ClusterOutputs
from stacks.training.package.target import targets
from stacks.training.package.trainer import deepspeed_runtime, runtimes, torch_runtime
from stacks.training.tests.support import training
from tests.support import measured
from tests.support.clusters import site
from tests.unit.charts.published import complaints, published_crd

TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


def runtime(**site: Any) -> dict[str, Any]:
    [target] = targets(ClusterOutputs.from_dict(measured.outputs(**site)), training()).values()
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
    found, only = pod(runtime()), container(runtime())
    assert found["runtimeClassName"] == "nvidia"
    assert found["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert only["image"] == "torch:1"
    assert only["resources"] == {"limits": {"nvidia.com/gpu": 8, "nvidia.com/hostdev": "8"}}
    assert only["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert only["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert found["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}]
    settings = {"NCCL_SOCKET_IFNAME": "eth0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    assert {each["name"]: each["value"] for each in only["env"]} == settings


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


def test_devices_of_the_profile_are_mounted() -> None:
    found = runtime(pool={"gpu_model": "A100"}, validation={"profile": "a100-ib-8x200-gdrcopy"})
    paths = [volume["hostPath"]["path"] for volume in pod(found)["volumes"] if "hostPath" in volume]
    assert paths == ["/dev/gdrdrv"]


def test_nothing_that_a_train_job_may_not_set_is_in_the_environment_of_the_runtime() -> None:
    # The webhook of Trainer refuses PET_ variables; it sets them itself.
    assert not [each for each in container(runtime())["env"] if each["name"].startswith("PET_")]


# ---- mpirun ----------------------------------------------------------------------------------------------

DEEPSPEED = {"enabled": True, "deepspeed": {"enabled": True}}


def deepspeed(**site: Any) -> dict[str, Any]:
    [target] = targets(ClusterOutputs.from_dict(measured.outputs(**site)), training()).values()
    found = deepspeed_runtime(target, "deepspeed:1")
    assert found is not None
    return found


def jobs(found: dict[str, Any]) -> dict[str, Any]:
    """Spec of each replicated job, by name."""
    return {
        job["name"]: job["template"]["spec"] for job in found["spec"]["template"]["spec"]["replicatedJobs"]
    }


def only_container(job: dict[str, Any]) -> dict[str, Any]:
    [found] = job["template"]["spec"]["containers"]
    made: dict[str, Any] = found
    return made


def test_both_runtimes_are_valid_by_the_published_crd() -> None:
    crd = published_crd("kubeflow-trainer", "v2.3.0", "ClusterTrainingRuntime")
    site = {
        "pool": {"taints": [TAINT], "gpu_model": "A100"},
        "validation": {"profile": "a100-ib-8x200-gdrcopy"},
    }
    for found in (runtime(**site), deepspeed(**site)):
        assert complaints(crd, "v1alpha1", found) == []


def test_the_runtime_for_mpirun_is_made_where_it_is_asked_for() -> None:
    [target] = targets(ClusterOutputs.from_dict(measured.outputs()), training()).values()
    names = [
        [each["metadata"]["name"] for each in runtimes(target, training(trainer=trainer).trainer)]
        for trainer in ({"enabled": True}, DEEPSPEED)
    ]
    assert names == [["busbar-torch-h100"], ["busbar-torch-h100", "busbar-deepspeed-h100"]]


def test_the_launcher_and_the_nodes_have_a_whole_worker_each() -> None:
    found = jobs(deepspeed(workers={"h100": 3}))
    assert found["node"]["parallelism"] == found["node"]["completions"] == 2
    for job in found.values():
        assert only_container(job)["resources"]["limits"] == {"nvidia.com/gpu": 8, "nvidia.com/hostdev": "8"}
        assert only_container(job)["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"]}


def test_trainer_makes_one_launcher_and_a_rank_per_gpu() -> None:
    assert deepspeed(workers={"h100": 3})["spec"]["mlPolicy"] == {
        "numNodes": 1,  # Trainer makes as many launchers
        "mpi": {
            "mpiImplementation": "OpenMPI",
            "numProcPerNode": 8,
            "runLauncherAsNode": True,
            "sshAuthMountPath": "/home/mpiuser/.ssh",
        },
    }


def test_mpirun_starts_when_every_sshd_answers_and_its_end_is_that_of_the_job() -> None:
    template = deepspeed()["spec"]["template"]["spec"]
    [node, launcher] = template.pop("replicatedJobs")
    assert template == {
        "network": {"publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["launcher"]},
    }
    assert launcher["dependsOn"] == [{"name": "node", "status": "Ready"}]
    assert launcher["template"]["metadata"]["labels"] == {
        "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"
    }
    probe = only_container(node["template"]["spec"])["readinessProbe"]
    assert probe == {"tcpSocket": {"port": 2222}, "periodSeconds": 2}


def test_mpirun_of_open_mpi_5_finds_the_host_file_too() -> None:
    node, launcher = (only_container(job)["env"] for job in jobs(deepspeed()).values())
    assert launcher == [
        *node, {"name": "PRTE_MCA_prte_default_hostfile", "value": "/etc/mpi/hostfile"},
    ]  # fmt: skip


def test_ranks_on_other_nodes_get_the_settings_of_nccl_by_their_sshd() -> None:
    node = only_container(jobs(deepspeed(validation={"profile": "h100-ib-8x400"}))["node"])
    *sshd, option = node["command"]
    assert sshd == ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config", "-o"]
    assert option.startswith("SetEnv=")
    settings = dict(pair.split("=", 1) for pair in shlex.split(option.removeprefix("SetEnv=")))
    assert settings == {each["name"]: each["value"] for each in node["env"]}
    assert settings["NCCL_IB_QPS_PER_CONNECTION"] == "2"


def test_the_user_of_the_image_reads_the_key_that_trainer_mounts() -> None:
    for job in jobs(deepspeed()).values():
        assert job["template"]["spec"]["securityContext"] == {"fsGroup": 1000}
        assert only_container(job)["securityContext"]["runAsUser"] == 1000


def test_a_pool_of_one_worker_gets_no_runtime_for_mpirun() -> None:
    config = training(trainer=DEEPSPEED, proof={"enabled": False})
    found = targets(ClusterOutputs.from_dict(measured.outputs(workers={"h100": 1})), config)
    assert deepspeed_runtime(found["h100"], "deepspeed:1") is None
