"""The MPIJob: what it asks for, when it is another job, and whether the CRDs accept it."""

import hashlib
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from busbar.manifests import mpijob
from busbar.manifests.launcher import LAUNCHER
from busbar.manifests.names import digest, job_name
from busbar.manifests.nccljob import TopologyFile, resolve
from busbar.manifests.scheduling import HCA_CHECK
from tests.support.kube_site import cluster, job


def worker(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    return found


def env_of(manifest: dict[str, Any], role: str) -> dict[str, Any]:
    spec = manifest["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
    return {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}


def test_a_site_with_rdma_gets_whole_nodes_locked_memory_and_a_deadline() -> None:
    manifest = mpijob.render(job())
    spec, pod = manifest["spec"], worker(manifest)
    assert (spec["slotsPerWorker"], spec["launcherCreationPolicy"]) == (8, "WaitForWorkersReady")
    policy = {"cleanPodPolicy": "Running", "backoffLimit": 0, "activeDeadlineSeconds": 1800}
    assert spec["runPolicy"] == policy
    roles = {
        name: (part["replicas"], part["restartPolicy"]) for name, part in spec["mpiReplicaSpecs"].items()
    }
    assert roles == {"Launcher": (1, "Never"), "Worker": (4, "Never")}
    assert pod["runtimeClassName"] == "nvidia"
    container = pod["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "nvidia.com/hostdev": 8}
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert container["command"][-1].startswith(HCA_CHECK)
    assert container["readinessProbe"]["tcpSocket"] == {"port": 22}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}} in pod["volumes"]
    assert "privileged" not in str(manifest) and "hostNetwork" not in str(manifest)
    assert env_of(manifest, "Launcher") == job().env


def test_sockets_need_no_capability_and_workers_without_hcas_check_none() -> None:
    sockets = {"transport": "socket", "runtime_class": ""}
    pod = worker(mpijob.render(job(validation=sockets, network_operator={"enabled": False})))
    assert "securityContext" not in pod["containers"][0] and "runtimeClassName" not in pod
    assert HCA_CHECK not in pod["containers"][0]["command"][-1]


def name(**config: Any) -> str:
    return str(mpijob.render(job(**config))["metadata"]["name"])


@pytest.mark.parametrize(
    "config",
    [
        {"nodes": 2},
        {"validation": {"run": 2}},
        {"validation": {"image": "example.com/nccl-tests:2"}},
        {"validation": {"iterations": 30}},
        {"validation": {"env": {"NCCL_IB_QPS_PER_CONNECTION": "4"}}},
        {"validation": {"algorithm": "ring"}},
        {"validation": {"transport": "socket"}},
        {"validation": {"deadline_seconds": 900}},
        {"validation": {"shm_size": "8Gi"}},
        {"validation": {"max_bytes": "16G"}},
        {"network_operator": {"resource": "example.com/hca"}},
        {"gpu_operator": {"version": "v26.7.1"}},
        {"gpu_operator": {"values": {"driver": {"enabled": True, "version": "590.48.01"}}}},
        {"gpu_operator": {"values": {"gdrcopy": {"enabled": True}}}},
        {"network_operator": {"selectors": {"pciAddresses": ["0000:21:00.0"]}}},
        {"k3s": {"version": "v1.35.5+k3s1"}},
        {"pool": {"taints": [{"key": "busy", "effect": "NoExecute"}]}},
    ],
)
def test_whatever_is_asked_for_makes_another_job(config: dict[str, Any]) -> None:
    assert name(**config) != name()


@pytest.mark.parametrize(
    "config",
    [
        {"pool": {"gpu_model": "H200"}},
        {"pool": {"rate_gbps": 200}},
        {"validation": {"transport": "rdma"}},
        {"validation": {"tolerance": 0.05, "expected_busbw_gbps": 300.0}},
        {"validation": {"when_busy": "keep"}},
        {"validation": {"enforce": False}},
        {"gpu_operator": {"values": {"driver": {"upgradePolicy": {"maxParallelUpgrades": 4}, "env": []}}}},
        {"gpu_operator": {"values": {"dcgmExporter": {"enabled": False}}}},
    ],
)
def test_another_expectation_is_judged_from_the_same_job(config: dict[str, Any]) -> None:
    assert name(**config) == name()


def test_another_topology_file_makes_another_job() -> None:
    files = (None, TopologyFile("h100", "h100.xml", "<system/>"), TopologyFile("h100", "h100.xml", "<a/>"))
    made = [mpijob.render(replace(job(), topology=file))["metadata"]["name"] for file in files]
    assert len({*made}) == 3


def test_a_corrected_text_makes_no_other_job_but_a_raised_number(monkeypatch: pytest.MonkeyPatch) -> None:
    before = mpijob.render(job())
    for text in ("script", "HCA_CHECK", "_SSHD"):
        monkeypatch.setattr(mpijob, text, (lambda _: "corrected") if text == "script" else "corrected")
    after = mpijob.render(job())
    assert after["spec"] != before["spec"]
    assert after["metadata"] == before["metadata"]
    monkeypatch.setattr(mpijob, "LAUNCHER", LAUNCHER + 1)
    assert name() != before["metadata"]["name"]


def test_workers_go_one_to_a_node_and_only_to_the_nodes_of_the_pool() -> None:
    manifest = mpijob.render(job(nodes=2))
    affinity = worker(manifest)["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["worker-1", "worker-2"]}
    assert terms == [{"matchExpressions": [hostname]}]
    (apart,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    of_job = {"training.kubeflow.org/job-name": manifest["metadata"]["name"]}
    workers = {**of_job, "training.kubeflow.org/job-role": "worker"}
    assert apart["labelSelector"]["matchLabels"] == workers


def test_each_device_of_a_profile_is_mounted_from_its_own_path() -> None:
    paths = {"/dev/gdrdrv": "CharDevice", "/usr/local/gib": "Directory"}
    pod = worker(mpijob.render(replace(job(), host_paths=paths)))
    volumes = {each["name"]: each["hostPath"] for each in pod["volumes"] if "hostPath" in each}
    mounts = {each["mountPath"]: volumes.get(each["name"]) for each in pod["containers"][0]["volumeMounts"]}
    found = {path: {"path": path, "type": kind} for path, kind in paths.items()}
    assert mounts == {"/dev/shm": None, **found}


def test_a_worker_sees_no_account_and_no_services_of_its_namespace_and_ends_soon() -> None:
    pod = worker(mpijob.render(job()))
    assert pod["automountServiceAccountToken"] is False
    # One variable per port of every Service: a namespace with thousands starts no process.
    assert pod["enableServiceLinks"] is False
    assert pod["terminationGracePeriodSeconds"] == 5


def test_taints_of_the_pool_are_tolerated_by_workers_and_launcher() -> None:
    taint = {"key": "team", "value": "ml", "effect": "NoExecute"}
    manifest = mpijob.render(job({"taints": [taint]}))
    for role in manifest["spec"]["mpiReplicaSpecs"].values():
        tolerated = role["template"]["spec"]["tolerations"]
        assert {**taint, "operator": "Equal"} in tolerated
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in tolerated


@pytest.mark.parametrize("pool", ["a" * 63, "a" * 62 + "-b"])
def test_the_name_leaves_room_for_the_operators_suffixes_and_is_a_dns_1035_label(pool: str) -> None:
    site = cluster().model_copy(update={"pools": {pool: cluster().pools["h100"]}})
    made = mpijob.render(resolve(site, pool, ["worker-1"]))["metadata"]["name"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", f"{made}-worker-99999") and "--" not in made
    assert len(job_name("a" * 62, {})) + len("-worker-99999") == 63, "nothing more is cut off"


def test_a_digest_depends_on_no_order_of_keys_and_refuses_what_json_does_not_have() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest({"tolerance": math.nan})


def test_a_topology_file_is_mounted_and_named_to_nccl(tmp_path: Path) -> None:
    (tmp_path / "h100.xml").write_text("<system/>")
    topology = TopologyFile.read("h100", tmp_path / "h100.xml")
    assert topology.config_map == f"nccl-topology-h100-{hashlib.sha256(b'<system/>').hexdigest()[:10]}"
    made = topology.manifest
    assert (made["metadata"]["name"], made["data"]) == (topology.config_map, {"h100.xml": "<system/>"})
    assert made["immutable"] is True
    resolved = resolve(cluster(), "h100", ["worker-1", "worker-2"], topology=topology)
    manifest = mpijob.render(resolved)
    assert env_of(manifest, "Launcher")["NCCL_TOPO_FILE"] == "/etc/nccl-topology/h100.xml"
    assert manifest["metadata"]["annotations"]["busbar/topology-sha256"] == topology.sha256
    pod = worker(manifest)
    assert {"name": "topology", "configMap": {"name": topology.config_map}} in pod["volumes"]
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert mounts["topology"] == "/etc/nccl-topology"


def test_the_configuration_wins_over_the_profile_and_the_profile_over_the_defaults() -> None:
    profile = {"profile": "h100-ib-8x400"}
    from_profile = job(validation=profile).env
    assert (from_profile["NCCL_ALGO"], from_profile["NCCL_IB_QPS_PER_CONNECTION"]) == ("RING", "2")
    own = {"env": {"NCCL_IB_QPS_PER_CONNECTION": "4"}, "algorithm": "auto", "shm_size": "8Gi"}
    told = job(validation=profile | own)
    assert (told.env["NCCL_IB_QPS_PER_CONNECTION"], told.shm_size) == ("4", "8Gi")
    assert "NCCL_ALGO" not in told.env
    hcas = job(validation={"hcas": ["mlx5_0", "mlx5_1"]}).env["NCCL_IB_HCA"]
    assert hcas == "=mlx5_0,mlx5_1", "whole names"


def test_every_run_asks_nccl_for_the_evidence_that_the_verdict_rests_on() -> None:
    for validation in ({}, {"profile": "h100-sharp"}, {"transport": "socket"}, {"algorithm": "sharp"}):
        env = job(validation=validation).env
        assert env["NCCL_DEBUG"] == "INFO"
        assert {"INIT", "NET", "ENV"} <= set(env["NCCL_DEBUG_SUBSYS"].split(","))
    assert "TUNING" in job(validation={"algorithm": "sharp"}).env["NCCL_DEBUG_SUBSYS"]


@pytest.mark.parametrize(
    ("operator", "validation", "hcas"),
    [
        ({"resource": "example.com/hca"}, {}, {"example.com/hca": 8}),
        ({"enabled": False}, {}, {"nvidia.com/hostdev": 8}),
        ({"enabled": False}, {"transport": "socket"}, {}),
        ({"enabled": False, "resource": "rdma/ib"}, {}, {"rdma/ib": 8}),
        ({"enabled": False, "resource": "rdma/ib"}, {"transport": "socket"}, {}),
        ({"enabled": False}, {"profile": "h100-coreweave"}, {"rdma/ib": 1}),
    ],
)
def test_hcas_come_from_our_operator_else_the_profile_else_the_configured_name(
    operator: dict[str, Any], validation: dict[str, Any], hcas: dict[str, int]
) -> None:
    assert job(network_operator=operator, validation=validation).hca_resources == hcas
