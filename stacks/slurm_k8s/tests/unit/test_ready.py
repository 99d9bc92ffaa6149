"""The end of an update: all nodes are in Slurm with their GPUs, and a job gets these."""

import base64
import hashlib
import hmac
import json
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from busbar.kube.client import ApiError
from stacks.slurm_k8s.package.drain import node_states
from stacks.slurm_k8s.package.ready import PROBED, PoolSpec, ReadySpec, ready, works
from stacks.slurm_k8s.package.rest import TOKEN_SECONDS, SlurmApi, token
from stacks.slurm_k8s.tests.support import KEY, PODS, REST, SlurmCluster, node, pod, slurm
from stacks.slurm_k8s.tests.support import cluster as site
from tests.support.bash import programs
from tests.support.kube_cluster import Clock

POOL = PoolSpec(workers=("gpu-1", "gpu-2"), gpus=8, gres="gpu:h100:8", memlock=True)


def result(
    cluster: SlurmCluster, clock: Clock | None = None, pool: PoolSpec = POOL, said: list[str] | None = None
) -> dict[str, Any]:
    spec = ReadySpec(namespace="slurm", pools={"h100": pool}, deadline_seconds=60)
    return ready(cluster, spec, clock or Clock(), ([] if said is None else said).append)


def both() -> SlurmCluster:
    return SlurmCluster(node("h100-0"), node("h100-1"))


def test_idle_nodes_and_a_job_with_their_gpus_are_a_pass() -> None:
    cluster = both()
    found = result(cluster)
    probe = found.pop("probes")["h100"]
    nodes = {"gpu-1": "h100-0", "gpu-2": "h100-1"}
    assert found == {"passed": True, "reasons": [], "nodes": nodes, "drained": {}}
    assert (probe["nodes"], probe["skipped"]) == (2, "")
    assert datetime.now(UTC) - datetime.fromisoformat(probe["passed_at"]) < timedelta(minutes=1)
    [job] = cluster.submitted
    assert job["job"]["required_nodes"] == ["h100-0", "h100-1"]
    assert job["job"]["tres_per_node"] == "gres/gpu:8"
    assert "-eq 8" in job["script"]
    # Over TCP pods need no locked memory.
    result(over_tcp := both(), pool=POOL.model_copy(update={"memlock": False}))
    assert "[ any = any ]" in over_tcp.submitted[0]["script"]


def test_a_drain_that_a_person_has_set_is_respected_and_reported() -> None:
    cluster = SlurmCluster(node("h100-0"), node("h100-1", "IDLE", "DRAIN", reason="ticket 12"))
    found = result(cluster)
    assert (found["passed"], found["drained"]) == (True, {"gpu-2": "ticket 12"})
    assert cluster.submitted[0]["job"]["required_nodes"] == ["h100-0"]


def test_slurmrestd_is_asked_with_a_token_that_is_signed_with_the_key_and_names_slurm_s_user() -> None:
    cluster = both()
    result(cluster)
    assert cluster.headers["X-SLURM-USER-NAME"] == "slurm"
    assert cluster.headers["X-SLURM-USER-TOKEN"].count(".") == 2
    parts = token(KEY, "slurm", 1000.0).split(".")
    head, claims, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in parts)
    assert json.loads(claims)["sun"] == "slurm"
    assert json.loads(head) == {"alg": "HS256", "typ": "JWT"}
    assert signature == hmac.new(KEY, ".".join(parts[:2]).encode(), hashlib.sha256).digest()


def test_a_token_is_made_anew_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, now = SlurmCluster(node("h100-0")), [5000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0])
    slurm, seen = SlurmApi(cluster, "slurm"), list[str]()
    for now[0] in (5000.0, 5100.0, 5000.0 + TOKEN_SECONDS * 0.9):
        slurm.nodes()
        seen.append(cluster.headers["X-SLURM-USER-TOKEN"])
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (node("h100-1", "DOWN", "NOT_RESPONDING", reason="Not responding"), "gpu-2: h100-1 is DOWN"),
        (node("h100-1", gres="gpu:h100:80"), "gpu-2: h100-1 has GRES gpu:h100:80, expected gpu:h100:8"),
        (node("h100-1", gres=""), "gpu-2: h100-1 has GRES null, expected gpu:h100:8"),
        (node("h100-1", "IDLE", "INVALID_REG", "DRAIN", reason="gres/gpu count"), "INVALID_REG"),
        # slurmctld itself drains such a node.
        (node("h100-1", "IDLE", "DRAIN", reason="Kill task failed"), "is IDLE+DRAIN: Kill task failed. Fix:"),
    ],
)
def test_a_node_that_gives_jobs_no_gpus_is_named_at_the_deadline(second: Any, says: str) -> None:
    found = result(SlurmCluster(node("h100-0"), second))
    assert found["passed"] is False
    assert says in found["reasons"][0]


def test_a_worker_without_a_node_is_named_with_the_reason_of_its_pod() -> None:
    cluster = SlurmCluster(node("h100-0"))
    assert result(cluster)["reasons"][0].startswith("gpu-2: no node of Slurm. Fix: if `busbar verify` names")
    waiting = {"name": "logfile", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    cluster.objects[PODS].append({**pod("h100-1", "gpu-2"), "status": {"initContainerStatuses": [waiting]}})
    reason = result(cluster)["reasons"][0]
    assert reason.startswith("gpu-2: no node of Slurm: pod slurm-worker-h100-1: ErrImagePull: ")


def failed(code: int) -> dict[str, Any]:
    return {"job_state": ["FAILED"], "exit_code": {"return_code": {"number": code}}}


def probed(cluster: SlurmCluster) -> SlurmCluster:
    """The same cluster, whose NodeSet has the annotation that a probe in the morning has left there."""
    result(earlier := both())
    [(path, body)] = earlier.patched
    noted = json.loads(body["metadata"]["annotations"][PROBED])
    noted["passed_at"] = MORNING
    cluster.objects[path] = {"metadata": {"annotations": {PROBED: json.dumps(noted)}}}
    return cluster


MORNING = "2026-11-29T08:00:00+00:00"
BUSY = (node("h100-0", "ALLOCATED"), node("h100-1", "MIXED"))


def test_nodes_with_jobs_are_not_probed_and_the_result_says_when_the_last_probe_passed() -> None:
    cluster, said = probed(SlurmCluster(*BUSY)), list[str]()
    found = result(cluster, said=said)
    assert (found["passed"], found["reasons"], cluster.submitted) == (True, [], [])
    assert found["probes"] == {"h100": {"passed_at": MORNING, "nodes": 2, "skipped": "no node is idle"}}
    text = f"none ran: no node is idle; the last one passed at {MORNING} on 2 nodes"
    assert said == [f"pool h100: probe: {text}"]


def test_a_pool_in_which_no_probe_has_ever_passed_is_not_a_pass_without_one() -> None:
    found = result(SlurmCluster(*BUSY))
    assert found["passed"] is False
    [reason] = found["reasons"]
    assert reason.startswith("pool h100: probe: none ran: no node is idle; none has ever passed. Fix: wait")


def test_a_probe_that_fails_leaves_the_time_of_the_last_pass() -> None:
    cluster = probed(SlurmCluster(node("h100-0"), node("h100-1"), job=failed(10)))
    found = result(cluster)
    assert (found["passed"], found["probes"]["h100"]["passed_at"]) == (False, MORNING)
    assert cluster.patched == []


def test_a_slurmdbd_that_is_not_ready_as_with_a_wrong_password_fails_the_update() -> None:
    cluster = both()
    cluster.objects["/apis/apps/v1/namespaces/slurm/statefulsets/slurm-accounting"] = {"status": {}}
    assert "StatefulSet slurm/slurm-accounting is ready: no job is recorded" in result(cluster)["reasons"][0]


def test_a_login_pod_and_slurmrestd_that_start_are_waited_for() -> None:
    cluster, clock, status = both(), Clock(), dict[str, int]()
    cluster.objects["/apis/apps/v1/namespaces/slurm/deployments/slurm-login-slinky"] = {"status": status}
    assert "slurm-login-slinky is ready: nobody can submit" in result(cluster)["reasons"][0]
    cluster.failures = [ApiError("GET", 503, "no endpoints"), ApiError("GET", 404, "not found")]
    clock.at(9, lambda: status.update(readyReplicas=1))
    assert result(cluster, clock)["passed"] is True
    assert clock.time >= 9


@pytest.mark.parametrize(
    ("code", "comment", "says"),
    [
        (10, "", "fewer GPUs"),
        (11, "", "ulimit -l"),
        (1, "", "exit code 1"),
        (12, "h100-1:/lib/libcuda.so.1", "h100-1:/lib/libcuda.so.1: a library of the NVIDIA driver has 0"),
    ],
)
def test_a_probe_that_fails_says_what_jobs_lack(code: int, comment: str, says: str) -> None:
    job = {**failed(code), "comment": {"job": comment}}
    [reason] = result(SlurmCluster(node("h100-0"), node("h100-1"), job=job))["reasons"]
    assert says in reason


@pytest.mark.parametrize(("size", "code", "comment"), [(0, 12, "comment=h100-0:{}/libcuda.so.1"), (1, 0, "")])
def test_a_driver_library_of_0_bytes_in_the_pod_is_named_with_its_node(
    size: int, code: int, comment: str, tmp_path: Path
) -> None:
    result(cluster := both())
    (tmp_path / "libcuda.so.1").write_bytes(bytes(size))
    programs(tmp_path, {"srun": 'shift; exec "$@"', "scontrol": f'echo "$@" >{tmp_path}/said'})
    script = cluster.submitted[0]["script"].replace("/usr/lib64", str(tmp_path)).replace("all =", "any =")
    gpus = ",".join(map(str, range(POOL.gpus)))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": gpus, "SLURM_JOB_ID": "7"}
    done = subprocess.run(["sh", "-c", script], env={**env, "SLURMD_NODENAME": "h100-0"}, timeout=60)
    said = (tmp_path / "said").read_text() if comment else ""
    assert (done.returncode, comment.format(tmp_path) in said) == (code, True)


def test_a_probe_that_does_not_start_is_cancelled() -> None:
    job = {"job_state": ["PENDING"], "state_reason": "Resources"}
    cluster = SlurmCluster(node("h100-0"), node("h100-1"), job=job)
    cluster.objects[f"{REST}/job/7"] = {"jobs": [job]}
    [reason] = result(cluster)["reasons"]
    assert "PENDING (Resources)" in reason
    assert [path for path, _ in cluster.deleted] == [f"{REST}/job/7"]


def test_a_partition_that_a_person_has_closed_gets_no_probe_and_is_named() -> None:
    job = {"job_state": ["PENDING"], "state_reason": "PartitionDown"}
    cluster = probed(SlurmCluster(node("h100-0"), node("h100-1"), job=job))
    cluster.objects[f"{REST}/job/7"] = {"jobs": [job]}
    said: list[str] = []
    found = result(cluster, said=said)
    assert (found["passed"], found["reasons"], found["drained"]) == (True, [], {})
    closed = "partition h100 is closed (PartitionDown)"
    assert found["probes"]["h100"]["skipped"] == closed
    assert said[-1].startswith(f"pool h100: probe: none ran: {closed}; the last")
    assert [path for path, _ in cluster.deleted] == [f"{REST}/job/7"]


CONTROLLER = "/apis/slinky.slurm.net/v1beta1/namespaces/slurm/controllers/slurm"


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still: the first question imports the judge, which takes seconds on a busy machine."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)


def with_late_job(ended: int, conf: str = "") -> SlurmCluster:
    """Two nodes that a job does not leave, which ended so many seconds ago."""
    cluster = SlurmCluster(node("h100-0", "COMPLETING"), node("h100-1", "COMPLETING"))
    job = {"job_id": 9, "job_state": ["CANCELLED", "COMPLETING"], "nodes": "h100-[0-1]"}
    job["end_time"] = {"set": True, "number": time.time() - ended}
    cluster.objects["/api/v1/pods"] = cluster.objects[PODS]
    cluster.objects[f"{REST}/jobs/"] = {"jobs": [job, {"job_id": 8, "job_state": ["RUNNING"]}]}
    cluster.objects[CONTROLLER] = {"spec": {"extraConf": f"GresTypes=gpu\n{conf}"}}
    return cluster


@pytest.mark.usefixtures("stopped_clock")
def test_a_job_that_does_not_end_its_processes_is_named_with_the_step_that_does() -> None:
    def reasons(ended: int, conf: str = "") -> list[str]:
        return [*map(str, works(slurm(), site(), with_late_job(ended, conf)))]

    late = "job 9 has been completing for 130 s, expected at most 120 s"
    first, second = reasons(130)
    assert first.startswith(
        f"gpu-1: h100-0: {late}. Fix: kubectl -n slurm delete pod slurm-worker-h100-0, which ends its"
    )
    assert second.startswith("gpu-2: h100-1: job 9 has been completing")
    assert reasons(110) == reasons(290, "KillWait=180") == []
    # `busbar nodes`
    assert node_states(with_late_job(130)) == {"gpu-1": f"in Slurm: {late}", "gpu-2": f"in Slurm: {late}"}
    assert node_states(with_late_job(110)) == {}
