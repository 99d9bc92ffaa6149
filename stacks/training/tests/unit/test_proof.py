"""The objects of a training run: what its pods ask for, how its ranks meet, when it is another run."""

import re
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from stacks.training.package import proof
from stacks.training.package.proof import Manifests, render
from stacks.training.tests.support import target, training

PROGRAM = {"main.py": "print()\n", "meet.py": "pass\n"}
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


def rendered(
    proof: dict[str, Any] | None = None, program: dict[str, str] = PROGRAM, **site: Any
) -> Manifests:
    config = training(proof=proof or {})
    return render(target(config, **site), config, program)


def pod(found: Manifests) -> dict[str, Any]:
    spec: dict[str, Any] = found.job["spec"]["template"]["spec"]
    return spec


def container(found: Manifests) -> dict[str, Any]:
    [only] = pod(found)["containers"]
    made: dict[str, Any] = only
    return made


def env(found: Manifests) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(found)["env"] if "value" in each}


def test_every_worker_of_the_pool_gets_one_pod_which_is_never_tried_again() -> None:
    spec = rendered().job["spec"]
    counts = {"completionMode": "Indexed", "completions": 2, "parallelism": 2}
    assert {**counts, "backoffLimit": 0, "activeDeadlineSeconds": 1200}.items() <= spec.items()


def test_a_pod_has_a_whole_worker_and_may_lock_memory() -> None:
    found = rendered(pool={"taints": [TAINT]})
    made, only = pod(found), container(found)
    assert only["resources"]["limits"] == {"nvidia.com/gpu": 8, "nvidia.com/hostdev": "8"}
    assert only["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert (made["runtimeClassName"], made["restartPolicy"]) == ("nvidia", "Never")
    assert made["automountServiceAccountToken"] is False
    assert [each["key"] for each in made["tolerations"]] == ["nvidia.com/gpu", "team"]
    workers = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu-1", "gpu-2"]}
    assert f"[{workers}]" in str(made["affinity"]["nodeAffinity"])
    of_this_job = {"matchLabels": {"batch.kubernetes.io/job-name": found.name}}
    alone = {"labelSelector": of_this_job, "topologyKey": "kubernetes.io/hostname"}
    assert [*made["affinity"]["podAntiAffinity"].values()] == [[alone]]


def test_a_pod_has_its_program_and_the_messages_of_nccl_that_the_verdict_needs() -> None:
    found = rendered()
    messages = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV", "NCCL_RUNTIME_CONNECT": "0"}
    assert {**messages, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}.items() <= env(found).items()
    sources = {each.pop("name"): each for each in pod(found)["volumes"]}
    places = {each["mountPath"]: sources[each["name"]] for each in container(found)["volumeMounts"]}
    assert places == {
        "/dev/shm": {"emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
        "/busbar/program": {"configMap": {"name": found.name}},
        "/busbar/checkpoints": {"emptyDir": {}},
    }


def test_torchrun_gets_the_options_that_are_configured() -> None:
    found = rendered({"ranks_per_node": 4, "deadline_seconds": 1300})
    first, script = f"{found.name}-0.{found.name}", container(found)["command"][2]
    assert f"python3 /busbar/program/meet.py {first} 29500 1285 " in script
    assert "timeout --kill-after=5 1285 " in script
    [torchrun] = re.findall(r"^  (--.*) /busbar/program/main.py ", script, re.MULTILINE)
    # One restart is used by the kill, another by a rank whose peer restarts.
    for option in (
        "--nnodes 2", "--nproc-per-node 4", "--max-restarts 3", f"--rdzv-id {found.name}",
        f"--rdzv-endpoint {first}:29500",
    ):  # fmt: skip
        assert option in torchrun


def test_memory_is_that_of_the_proof_or_of_the_validation() -> None:
    asked = {"cpu": "16", "memory": "800Gi"}
    for given, requests, memory in (({}, None, "900Gi"), (asked, {"cpu": "16"}, "800Gi")):
        found = container(rendered(given, validation={"memory": "900Gi"}))["resources"]
        assert (found.get("requests"), found["limits"]["memory"]) == (requests, memory)


def test_a_run_on_cpus_asks_for_no_device_and_looks_at_none() -> None:
    found = rendered({"backend": "gloo"}, validation={"transport": "socket", "expected_busbw_gbps": 1})
    assert container(found)["resources"] == {}
    assert "securityContext" not in container(found)
    assert "runtimeClassName" not in pod(found)
    assert env(found)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "/dev/infiniband" not in container(found)["command"][2]
    assert "/dev/infiniband" in container(rendered())["command"][2]


def test_the_stack_s_own_environment_comes_last_after_that_of_the_pool_s_validation() -> None:
    found = rendered(
        {"env": {"NCCL_SOCKET_IFNAME": "eth1", "PYTHONUNBUFFERED": "0"}},
        pool={"gpu_model": "A100"},
        validation={"profile": "a100-ib-8x200-gdrcopy", "shm_size": "32Gi"},
    )
    assert (env(found)["NCCL_SOCKET_IFNAME"], env(found)["PYTHONUNBUFFERED"]) == ("eth1", "0")
    paths = [volume["hostPath"]["path"] for volume in pod(found)["volumes"] if "hostPath" in volume]
    assert paths == ["/dev/gdrdrv"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}} in pod(found)["volumes"]
    profile = rendered(validation={"profile": "h100-ib-8x400"})
    assert env(profile)["NCCL_IB_QPS_PER_CONNECTION"] == "2"


def test_the_ranks_meet_at_the_pod_with_index_0_by_its_name_in_the_headless_service() -> None:
    found = rendered()
    spec = found.service["spec"]
    assert (found.service["metadata"]["name"], spec["clusterIP"]) == (found.name, "None")
    assert spec["selector"] == {"batch.kubernetes.io/job-name": found.name}
    assert spec["publishNotReadyAddresses"] is True


def ran(stub: str, index: int = 1, **proof: Any) -> subprocess.CompletedProcess[str]:
    """The script of a pod after functions in place of its programs."""
    script = container(rendered(proof))["command"][2]
    variables = {"JOB_COMPLETION_INDEX": str(index), "BUSBAR_NODE": "gpu-2", "PATH": "/usr/bin:/bin"}
    call = ["/bin/sh", "-c", f"{stub}\n{script}"]
    return subprocess.run(call, env=variables, capture_output=True, text=True, timeout=120)


def test_the_script_is_valid_and_its_exit_code_is_that_of_the_run() -> None:
    done = ran('timeout() { echo "run $*"; return 7; }', index=0)
    assert done.returncode == 7, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "# busbar: launcher starts"
    assert "is_host=1,join_timeout=1185" in said[1]
    assert said[-1] == "# busbar: launcher ends with exit code 7"


def test_a_pod_without_one_of_its_interfaces_or_the_first_pod_does_not_start_to_train_and_says_so() -> None:
    never = 'timeout() { echo "must not run"; }'
    alone = ran(f"python3() {{ return 1; }}\n{never}")
    assert alone.returncode == 1 and "must not run" not in alone.stdout
    status = 'tee() { cat; echo "to $1"; }'
    done = ran(f"{status}\npython3() {{ :; }}\n{never}", interfaces=["lo", "net9"])
    assert done.returncode == 1
    assert done.stdout.splitlines()[1:] == [
        "# busbar: pod on gpu-2 has no interface net9. Fix: check Multus there, raise proof.run",
        "to /dev/termination-log",
        "# busbar: launcher ends with exit code 1",
    ]


def test_another_request_makes_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"run": 2, "steps": 31, "image": "other:1", "env": {"NCCL_ALGO": "Ring"}}
    names = [
        rendered().name,
        *(rendered({key: value}).name for key, value in changes.items()),
        rendered(workers={"h100": 3}).name,
        rendered(pool={"taints": [TAINT]}).name,
        rendered(validation={"shm_size": "32Gi"}).name,
        rendered(machines={"gpu-1": "another machine"}).name,
        *(on_storage(path).name for path in ("/mnt/shared", "/mnt/other")),
    ]
    monkeypatch.setattr(proof, "REVISION", proof.REVISION + 1)
    names.append(rendered().name)
    assert len(set(names)) == len(names)


def test_another_text_or_another_limit_of_the_verdict_makes_no_other_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = rendered().name
    assert rendered(program={**PROGRAM, "main.py": "print(1)\n"}).name == name
    assert rendered({"min_busbw_fraction": 0.9, "min_loss_drop": 0.1, "enforce": False}).name == name
    monkeypatch.setattr(proof, "_SCRIPT", f"# a comment\n{proof._SCRIPT}")
    monkeypatch.setattr(proof, "HCA_CHECK", "")
    assert rendered().name == name


def test_names_fit_also_for_a_pool_with_a_long_name() -> None:
    name = render(replace(target(training()), pool="p" * 63), training(), PROGRAM).name
    assert len(f"{name}-99999-abcde") <= 63
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


def on_storage(path: str) -> Manifests:
    config = training(storage={"mode": "path", "path": path})
    return render(target(config), config, PROGRAM)


def test_on_shared_storage_every_run_has_a_folder_of_its_own_and_no_worker_gets_one_on_its_disk() -> None:
    found = on_storage("/mnt/shared")
    [volume] = [each for each in pod(found)["volumes"] if each["name"] == "checkpoints"]
    [mount] = [each for each in container(found)["volumeMounts"] if each["name"] == "checkpoints"]
    assert volume["hostPath"] == {"path": "/mnt/shared", "type": "Directory"}
    assert mount["subPathExpr"] == f"busbar-training/{found.name}-$(BUSBAR_RUN)"
    [run] = [each for each in container(found)["env"] if each["name"] == "BUSBAR_RUN"]
    assert "batch.kubernetes.io/controller-uid" in run["valueFrom"]["fieldRef"]["fieldPath"]
