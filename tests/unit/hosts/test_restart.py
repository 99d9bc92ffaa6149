"""What comes before and after the restart of an agent, and which changes restart one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from busbar.hosts import scripts
from tests.unit.hosts.bash import run

# The API that the kubelet sees: `pods` are lines "KIND NAMESPACE/NAME" of running ones, RUNS is the version
# of the kubelet, NOTE that of an update on the Node. LATER runs after each look. Only `sleep` takes time.
API = r"""
unset SECONDS
SECONDS=0 UNIT=k3s-agent
poll() { shift; "$@"; }
k3s_node_is_ready() { [[ $SECONDS -lt ${READY_UNTIL:-9999} ]]; }
k3s_is_back() { k3s_node_is_ready; }
api() {
  case "$*" in
    *"spec.nodeName=worker-1,status.phase=Running"*) cat "$ROOT/pods" ;;
    *kubeletVersion*) [[ -n ${RUNS:-} ]] && echo "$RUNS" ;;
    *busbar/cordoned*) echo "${NOTE:-}" ;;
    *) echo "unexpected: $*" >&2; return 1 ;;
  esac
}
rm() { echo "rm $2"; }
sleep() { SECONDS=$((SECONDS + 10)); LATER; }
"""
OTHERS = "DaemonSet gpu-operator/plugin-x\nReplicaSet site/web-1\n site/bare\n"


def restarted(
    root: Path,
    pods: str = "",
    *,
    jobs: str = "keep",
    drain: str = "never",
    later: str = ":",
    call: str = "prepare_restart; echo restarts",
    **values: str,
) -> subprocess.CompletedProcess[str]:
    (root / "pods").write_text(pods)
    settings = {"RUNNING_JOBS": jobs, "JOBS_SECONDS": "60", "DRAIN": drain, "VERSION": "v1.35.6+k3s1"}
    start = f"LATER() {{ {later}; }};"
    return run(
        "k3s-agent", f"{start}{API}{call}", ROOT=str(root), **{**settings, "PAUSE_SECONDS": "30", **values}
    )


@pytest.mark.parametrize(
    ("drain", "runs", "asks"),
    [
        ("never", "v1.35.5+k3s1", False),
        ("upgrade", "v1.35.5+k3s1", True),
        ("upgrade", "v1.35.6+k3s1", False),
        ("upgrade", "", True),  # no answer
        ("always", "v1.35.6+k3s1", True),
    ],
)
def test_a_pool_says_for_which_restarts_a_worker_asks_to_be_drained_first(
    drain: str, runs: str, asks: bool, tmp_path: Path
) -> None:
    done = restarted(tmp_path, drain=drain, RUNS=runs)
    assert (done.stdout == "restarts\n") is not asks, done.stderr
    assert (scripts.NOT_DRAINED in done.stderr.splitlines()) is asks
    # The next run does not take the files of this one for changes of somebody else.
    assert ("rm /var/lib/busbar/applied.sha256\n" in done.stdout) is asks


def test_a_worker_that_this_update_has_drained_restarts(tmp_path: Path) -> None:
    done = restarted(tmp_path, drain="always", NOTE='{"why":"restart of K3s"}')
    assert done.stdout == "restarts\n", done.stderr


def test_a_node_that_is_not_ready_restarts_at_once(tmp_path: Path) -> None:
    done = restarted(tmp_path, "Job team/a\n", jobs="refuse", drain="always", READY_UNTIL="0")
    assert done.stdout == "restarts\n", done.stderr


@pytest.mark.parametrize("jobs", ["wait", "refuse"])
def test_pods_that_are_not_of_a_job_hold_no_restart_up(tmp_path: Path, jobs: str) -> None:
    assert restarted(tmp_path, OTHERS, jobs=jobs).stdout == "restarts\n"


def test_a_restart_waits_for_the_end_of_jobs_and_names_them(tmp_path: Path) -> None:
    jobs = OTHERS + "MPIJob team/train-worker-0\nJob team/evaluate-x\n"
    done = restarted(tmp_path, jobs, jobs="wait", later=">$ROOT/pods")
    assert done.stdout == "restarts\n"
    assert "waiting for jobs to end: team/train-worker-0 team/evaluate-x\n" in done.stderr


def test_a_job_that_does_not_end_fails_the_update_and_nothing_restarts(tmp_path: Path) -> None:
    done = restarted(tmp_path, "MPIJob team/train-worker-0\n", jobs="wait", drain="always")
    assert (done.returncode, done.stdout) == (1, "")
    assert "jobs are still running here after 60 s: team/train-worker-0. Fix: " in done.stderr


def test_a_restart_is_refused_while_a_job_runs(tmp_path: Path) -> None:
    done = restarted(tmp_path, "MPIJob team/train-worker-0\n", jobs="refuse", later="exit 99")
    assert (done.returncode, done.stdout) == (1, "")
    assert "jobs are running here: team/train-worker-0; the agent was not restarted. Fix: " in done.stderr


@pytest.mark.parametrize("jobs", ["wait", "refuse"])
def test_without_an_answer_about_jobs_nothing_restarts(tmp_path: Path, jobs: str) -> None:
    done = restarted(tmp_path, jobs=jobs, call="api() { return 1; }; prepare_restart")
    assert done.returncode == 1
    assert "unknown, the API is not responding" in done.stderr


PAUSE = "pause_after_restart; echo $SECONDS"


def test_a_worker_is_done_when_it_has_been_ready_for_the_pause_after_its_restart(tmp_path: Path) -> None:
    done = restarted(tmp_path, call=f"prepare_restart; {PAUSE}")
    assert done.stdout == "30\n", done.stderr


def test_a_worker_that_did_not_restart_does_not_pause(tmp_path: Path) -> None:
    assert restarted(tmp_path, call=PAUSE).stdout == "0\n"


def test_a_node_that_is_not_ready_any_more_ends_the_pause(tmp_path: Path) -> None:
    done = restarted(tmp_path, call=f"IS_PREPARED=true; {PAUSE}", READY_UNTIL="20")
    assert done.returncode == 1
    assert "Node worker-1 is no longer Ready, 20 s after its restart. Fix: " in done.stderr


def hash_of(root: Path, config: str, sha256: str = "a", images: str = "") -> str:
    (root / "config.yaml").write_text(config)
    places = f"K3S_CONFIG_DIR={root}; K3S_SHA256={sha256}; IMAGES='{images}'; find() {{ :; }}; "
    done = run("k3s-agent", places + "desired_state_hash")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_labels_and_taints_restart_no_agent_and_everything_else_does(tmp_path: Path) -> None:
    plain = "kubelet-arg:\n- v=1\nnode-name: a\n"
    listed = "kubelet-arg:\n- v=1\nnode-label:\n- a=b\n- c=d\nnode-name: a\nnode-taint:\n- x=y:NoSchedule\n"
    assert hash_of(tmp_path, plain) == hash_of(tmp_path, listed)
    assert hash_of(tmp_path, plain) != hash_of(tmp_path, plain.replace("v=1", "v=2"))
    assert hash_of(tmp_path, listed) != hash_of(tmp_path, listed.replace("node-name: a", "node-name: b"))
    assert hash_of(tmp_path, plain) != hash_of(tmp_path, plain, sha256="b")
    assert hash_of(tmp_path, plain) != hash_of(tmp_path, plain, images=f"{'1' * 64} http://mirror/a.tar")
