"""What comes before and after the restart of an agent, and which changes restart one."""

from subprocess import CompletedProcess

import pytest

from busbar.hosts import scripts
from tests.support.bash import Box

# The API that the kubelet sees: PODS are lines "KIND NAMESPACE/NAME" of running ones, RUNS is the version
# of the kubelet, NOTE that of an update on the Node. LATER runs after each look. Only `sleep` takes time.
API = r"""
unset SECONDS
SECONDS=0 UNIT=k3s-agent
poll() { shift; "$@"; }
k3s_node_is_ready() { [[ $SECONDS -lt ${READY_UNTIL:-9999} ]]; }
k3s_is_back() { k3s_node_is_ready; }
api() {
  case "$*" in
    *"spec.nodeName=worker-1,status.phase=Running"*) printf '%s' "$PODS" ;;
    *kubeletVersion*) [[ -n ${RUNS:-} ]] && echo "$RUNS" ;;
    *busbar/cordoned*) echo "${NOTE:-}" ;;
    *) echo "unexpected: $*" >&2; return 1 ;;
  esac
}
rm() { echo "rm ${2#"$ROOT/"}"; }
sleep() { SECONDS=$((SECONDS + 10)); eval "${LATER:-}"; }
"""
POOL = {"RUNNING_JOBS": "keep", "JOBS_SECONDS": "60", "DRAIN": "never", "PAUSE_SECONDS": "30"}
RESTART = "prepare_restart; echo restarts"
OTHERS = "DaemonSet gpu-operator/plugin-x\nReplicaSet site/web-1\n site/bare\n"
JOB = "MPIJob team/train-worker-0\n"


def restarted(box: Box, pods: str = "", call: str = RESTART, **values: str) -> CompletedProcess[str]:
    """The restart of a worker with these pods."""
    return box.run("k3s-agent", API + call, **{**POOL, "VERSION": "v1.35.6+k3s1", "PODS": pods, **values})


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
def test_a_pool_says_which_restarts_drain_a_worker(drain: str, runs: str, asks: bool, box: Box) -> None:
    done = restarted(box, DRAIN=drain, RUNS=runs)
    # The next run does not take the files of this one for changes of somebody else.
    assert done.stdout == ("rm state/applied.sha256\n" if asks else "restarts\n"), done.stderr
    assert (scripts.NOT_DRAINED in done.stderr.splitlines()) is asks


@pytest.mark.parametrize(
    ("pods", "values"),
    [
        # This update has drained the worker.
        ("", {"DRAIN": "always", "NOTE": '{"why":"restart of K3s"}'}),
        # Its Node is not Ready.
        (JOB, {"RUNNING_JOBS": "refuse", "DRAIN": "always", "READY_UNTIL": "0"}),
        # No pod is of a job.
        (OTHERS, {"RUNNING_JOBS": "wait"}),
        (OTHERS, {"RUNNING_JOBS": "refuse"}),
    ],
)
def test_a_restart_that_interrupts_no_job_is_not_held_up(box: Box, pods: str, values: dict[str, str]) -> None:
    done = restarted(box, pods, **values)
    assert done.stdout == "restarts\n", done.stderr


def test_a_restart_waits_for_the_end_of_jobs_and_names_them(box: Box) -> None:
    done = restarted(box, f"{OTHERS}{JOB}Job team/evaluate-x\n", RUNNING_JOBS="wait", LATER="PODS=''")
    assert done.stdout == "restarts\n"
    assert "waiting for jobs to end: team/train-worker-0 team/evaluate-x\n" in done.stderr


@pytest.mark.parametrize(
    ("pods", "values", "says"),
    [
        (JOB, {"RUNNING_JOBS": "wait"}, "jobs are still running here after 60 s: team/train-worker-0. Fix: "),
        (
            JOB,
            {"RUNNING_JOBS": "refuse", "LATER": "exit 99"},
            "jobs are running here: team/train-worker-0; the agent was not restarted. Fix: ",
        ),
        ("", {"RUNNING_JOBS": "wait", "AWAY": "yes"}, "unknown, the API is not responding"),
        ("", {"RUNNING_JOBS": "refuse", "AWAY": "yes"}, "unknown, the API is not responding"),
    ],
)
def test_jobs_that_may_run_hold_a_restart_up(box: Box, pods: str, values: dict[str, str], says: str) -> None:
    away = "[[ -z ${AWAY:-} ]] || api() { return 1; }; "
    done = restarted(box, pods, away + RESTART, **values)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr


@pytest.mark.parametrize(
    ("name", "running", "pods", "status"),
    [
        ("worker-9", "refuse", JOB, 1),
        ("worker-9", "refuse", OTHERS, 0),
        ("worker-9", "keep", JOB, 0),
        ("worker-1", "refuse", JOB, 0),  # not renamed: it asks before a restart, if there is one
    ],
)
def test_a_worker_with_jobs_keeps_its_name(box: Box, name: str, running: str, pods: str, status: int) -> None:
    box.write("etc/config.yaml", "node-name: worker-1\n")
    others = "k3s_refuse_conflicts k3s_node_address record_preexisting_files k3s_download restart_after_drift"
    others += " systemctl with_rotations k3s_record_machine record_applied_hash k3s_version"
    install = "".join(f"{part}() {{ :; }}; " for part in others.split()) + "install_agent"
    done = restarted(box, pods, install, NODE_NAME=name, RUNNING_JOBS=running)
    assert done.returncode == status, done.stderr
    assert box.has("state/owner") is not bool(status), "nothing was changed"
    assert ("jobs are running here: team/train-worker-0; the agent was" in done.stderr) is bool(status)


def test_a_worker_that_restarted_is_done_after_the_pause_in_which_its_node_stays_ready(box: Box) -> None:
    for before, pause in (("prepare_restart", "30\n"), ("", "0\n")):
        done = restarted(box, call=f"{before}\npause_after_restart; echo $SECONDS")
        assert done.stdout == pause, done.stderr
    done = restarted(box, call="IS_PREPARED=true; pause_after_restart", READY_UNTIL="20")
    assert done.returncode == 1
    assert "Node worker-1 is no longer Ready, 20 s after its restart. Fix: " in done.stderr


PLAIN = "kubelet-arg:\n- v=1\nnode-name: a\n"
LISTED = "kubelet-arg:\n- v=1\nnode-label:\n- a=b\n- c=d\nnode-name: a\nnode-taint:\n- x=y:NoSchedule\n"


def hash_of(box: Box, config: str, sha256: str = "a", images: str = "") -> str:
    box.write("etc/config.yaml", config)
    # `find` looks for files of the site.
    return box.output("k3s-agent", "find() { :; }; desired_state_hash", K3S_SHA256=sha256, IMAGES=images)


def test_labels_and_taints_restart_no_agent_and_everything_else_does(box: Box) -> None:
    assert hash_of(box, PLAIN) == hash_of(box, LISTED)
    assert hash_of(box, PLAIN) != hash_of(box, PLAIN.replace("v=1", "v=2"))
    assert hash_of(box, LISTED) != hash_of(box, LISTED.replace("node-name: a", "node-name: b"))
    assert hash_of(box, PLAIN) != hash_of(box, PLAIN, sha256="b")
    assert hash_of(box, PLAIN) != hash_of(box, PLAIN, images=f"{'1' * 64} http://mirror/a.tar")


def test_settings_that_are_links_or_behind_one_count(box: Box) -> None:
    box.write("site/config.yaml.d/site.yaml")
    box.write("site.yaml")
    (box.root / "site/config.yaml.d/linked.yaml").symlink_to(box.root / "site.yaml")
    (box.root / "etc").symlink_to("site")
    found = box.output("k3s-agent", "k3s_settings || true").split("\0")
    assert {f"{box.root}/etc/config.yaml.d/{name}.yaml" for name in ("linked", "site")} <= {*found}
