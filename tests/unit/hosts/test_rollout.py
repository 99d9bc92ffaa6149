"""Turns: how many running agents of a pool restart at the same time."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from busbar.hosts.scripts import TURN_KEPT
from tests.unit.hosts.bash import run
from tests.unit.hosts.nodes import cluster, performed

# The API that the kubelets see: one file per turn, with the Node that holds it. LATER runs after each look.
# Only `sleep` takes time.
API = r"""
unset SECONDS
SECONDS=0
poll() { shift; "$@"; }
k3s_node_has() { [[ $READY == yes ]]; }
value() { sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/" <<<"$2"; }
rollout() {
  local text
  case "$*" in
    "get configmap workers "*) cat "$ROOT/limits" ;;
    "get configmaps -l "*) cd "$ROOT/turns" && { grep -H . * 2>/dev/null | tr : ' ' || true; } ;;
    "get configmap "*) cut -d' ' -f1 "$ROOT/turns/$3" 2>/dev/null || true ;;
    "patch configmap "*) echo "$(<"$ROOT/turns/$3") $(value failed "$*")" >"$ROOT/turns/$3" ;;
    "create -f -")
      text=$(cat)
      [[ -z ${FORBIDDEN:-} ]] || { echo "Error from server (Forbidden): no" >&2; return 1; }
      (set -C; value node "$text" >"$ROOT/turns/$(value name "$text")") ;;
    "delete configmap "*) rm "$ROOT/turns/$3" ;;
    *) echo "unexpected: $*" >&2; return 1 ;;
  esac
}
uncordon() { rm -f "$ROOT/cordoned"; }
sleep() { SECONDS=$((SECONDS + 10)); LATER; }
"""
LIMITS = "".join(
    f"{line} never 0 0\n"
    for line in ("worker-1 gpu 2 keep", "worker-2 gpu 2 keep", "worker-3 gpu 2 keep", "other-1 other 1 keep")
)


def turns(root: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in (root / "turns").iterdir()}


def taken(
    root: Path,
    held: dict[str, str],
    *,
    ready: str = "yes",
    later: str = ":",
    limits: str = LIMITS,
    call: str = "take_turn; echo restarts; trap - EXIT",
    **values: str,
) -> subprocess.CompletedProcess[str]:
    """The outcome for worker-1 where these turns (name -> Node) are held."""
    (root / "turns").mkdir(exist_ok=True)
    for name, node in held.items():
        (root / "turns" / name).write_text(f"{node}\n")
    (root / "limits").write_text(limits)
    state = (
        f"STATE_DIR={root}/busbar TURN_FILE={root}/busbar/turn; mkdir -p $STATE_DIR; LATER() {{ {later}; }};"
    )
    return run("k3s-agent", f"{state}{API}{call}", ROOT=str(root), READY=ready, TURN_SECONDS="60", **values)


def test_an_agent_restarts_at_once_while_a_turn_of_its_pool_is_free(tmp_path: Path) -> None:
    done = taken(tmp_path, {"gpu-0": "worker-2"})
    assert done.stdout == "restarts\n", done.stderr
    assert turns(tmp_path) == {"gpu-0": "worker-2", "gpu-1": "worker-1"}


def test_an_agent_waits_for_a_turn_and_names_those_before_it(tmp_path: Path) -> None:
    held = {"gpu-0": "worker-2", "gpu-1": "worker-3"}
    done = taken(tmp_path, held, later="rm -f $ROOT/turns/gpu-0")
    assert done.stdout == "restarts\n"
    assert done.stderr == "busbar: worker-1: waits for its turn to restart, after worker-2 worker-3\n"
    assert turns(tmp_path) == {"gpu-0": "worker-1", "gpu-1": "worker-3"}


def test_agents_that_do_not_come_back_keep_the_others_from_restarting(tmp_path: Path) -> None:
    done = taken(tmp_path, {"gpu-0": "worker-2", "gpu-1": "worker-3"})
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(
        r"no turn to restart within 60 s; 2 of pool gpu may .*, now: worker-2 worker-3\. Fix: ", done.stderr
    )


def test_a_limit_that_was_lowered_counts_turns_that_are_held(tmp_path: Path) -> None:
    done = taken(tmp_path, {"gpu-3": "worker-2"}, limits="worker-1 gpu 1 keep never 0 0\n")
    assert (done.returncode, turns(tmp_path)) == (1, {"gpu-3": "worker-2"})


def test_an_agent_whose_last_run_broke_off_does_not_wait_for_its_own_turn(tmp_path: Path) -> None:
    (tmp_path / "busbar").mkdir()
    (tmp_path / "busbar/turn").write_text("gpu-0\n")
    held = {"gpu-0": "worker-1", "gpu-1": "worker-2"}
    done = taken(tmp_path, held, call="take_turn; ls $ROOT/turns; end_turn", later="exit 99")
    assert done.stdout.split() == ["gpu-0", "gpu-1"], done.stderr
    assert turns(tmp_path) == {"gpu-1": "worker-2"}


def test_a_worker_that_an_interrupted_update_cordoned_takes_pods_while_it_waits_for_its_turn(
    tmp_path: Path,
) -> None:
    # Otherwise the pods that the worker before it has to evict may have nowhere to go.
    (tmp_path / "cordoned").touch()
    held = {"gpu-0": "worker-2", "gpu-1": "worker-3"}
    done = taken(tmp_path, held, later="[[ ! -e $ROOT/cordoned ]] && rm -f $ROOT/turns/gpu-0")
    assert done.stdout == "restarts\n", done.stderr


@pytest.mark.parametrize(
    ("drain", "printed"), [("always", "drains gpu 90 gpu-0\nrestarts\n"), ("never", "restarts\n")]
)
def test_a_worker_is_drained_when_its_agent_has_its_turn(tmp_path: Path, drain: str, printed: str) -> None:
    call = "drain_node() { echo drains $* $(<$TURN_FILE); }; take_turn; echo restarts; trap - EXIT"
    assert taken(tmp_path, {}, limits=f"worker-1 gpu 1 keep {drain} 90 0\n", call=call).stdout == printed


def test_an_agent_that_fails_keeps_its_turn_and_notes_when(tmp_path: Path) -> None:
    done = taken(tmp_path, {}, call="take_turn; die 'it did not come back' 'repair it'")
    assert re.fullmatch(r"worker-1 \d+", turns(tmp_path)["gpu-0"])
    assert f"busbar: worker-1: {TURN_KEPT}" in done.stderr.splitlines()[-1]


def test_an_agent_that_fails_without_a_turn_does_not_say_that_it_keeps_one(tmp_path: Path) -> None:
    held = {"gpu-0": "worker-2", "gpu-1": "worker-3"}
    assert TURN_KEPT not in taken(tmp_path, held).stderr


def test_an_agent_that_came_back_leaves_no_turn(tmp_path: Path) -> None:
    taken(tmp_path, {}, call="take_turn; end_turn")
    assert turns(tmp_path) == {}


def test_the_first_agent_that_fails_ends_the_wait_of_the_others(tmp_path: Path) -> None:
    held = {"gpu-0": "worker-2", "gpu-1": "worker-3"}
    done = taken(tmp_path, held, later="echo worker-2 1795322299 >$ROOT/turns/gpu-0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "worker-2 failed in this update; no other agent of pool gpu restarts. Fix: " in done.stderr


def test_a_free_turn_is_not_taken_any_more_when_an_agent_has_failed_meanwhile(tmp_path: Path) -> None:
    held = {"gpu-0": "worker-2", "gpu-1": "worker-3"}
    done = taken(tmp_path, held, later="cd $ROOT/turns; echo worker-2 1795322299 >gpu-0; rm gpu-1")
    assert (done.returncode, done.stdout, turns(tmp_path)) == (1, "", {"gpu-0": "worker-2 1795322299"})


def test_an_agent_that_failed_in_an_earlier_update_may_be_repaired_by_this_one(tmp_path: Path) -> None:
    held = {"gpu-0": "worker-2 1795322299", "gpu-1": "worker-3"}
    assert taken(tmp_path, held, later="rm -f $ROOT/turns/gpu-0").stdout == "restarts\n"


def test_the_wait_for_a_turn_begins_anew_whenever_another_agent_has_come_back(tmp_path: Path) -> None:
    # 50 s for each of three agents, where a wait without any change ends after 60 s.
    later = "n=$((${n:-0} + 1)); case $n in 5 | 10) echo worker-$n >gpu-0 ;; 15) rm gpu-0 ;; esac"
    later = f"cd $ROOT/turns; {later}"
    done = taken(tmp_path, {"gpu-0": "worker-2"}, later=later, limits="worker-1 gpu 1 keep never 0 0\n")
    assert done.stdout == "restarts\n", done.stderr


READY = """
unset SECONDS
SECONDS=0 PAUSE_SECONDS=30
poll() { shift; "$@"; }
k3s_node_has() { [[ $SECONDS -lt ${READY_UNTIL:-99} ]]; }
sleep() { SECONDS=$((SECONDS + 10)); }
"""


@pytest.mark.parametrize(("turn", "waited"), [(True, 30), (False, 0)])
def test_an_agent_that_took_a_turn_keeps_it_until_it_has_been_ready_for_the_pause(
    tmp_path: Path, turn: bool, waited: int
) -> None:
    if turn:
        (tmp_path / "turn").write_text("gpu-0\n")
    done = run("k3s-agent", f"TURN_FILE={tmp_path}/turn; {READY} pause_turn; echo $SECONDS")
    assert done.stdout == f"{waited}\n", done.stderr


def test_a_node_that_is_not_ready_any_more_ends_the_pause(tmp_path: Path) -> None:
    (tmp_path / "turn").write_text("gpu-0\n")
    call = f"TURN_FILE={tmp_path}/turn; {READY} pause_turn"
    done = run("k3s-agent", call, READY_UNTIL="20")
    assert done.returncode == 1
    assert "Node worker-1 is not Ready any more, 20 s after its restart. Fix: " in done.stderr


def test_a_node_that_is_not_ready_restarts_without_a_turn(tmp_path: Path) -> None:
    held = {"gpu-0": "worker-2", "gpu-1": "worker-3"}
    assert taken(tmp_path, held, ready="no").stdout == "restarts\n"
    assert turns(tmp_path) == held


def test_two_agents_never_take_the_same_turn(tmp_path: Path) -> None:
    # Another agent takes turn 0 between the look at the turns and the request.
    race = 'begin() { held="" pool=gpu limit=1 begin_turn; }; begin || echo refused'
    done = taken(tmp_path, {"gpu-0": "worker-2"}, call=race)
    assert done.stdout == "refused\n"
    assert turns(tmp_path) == {"gpu-0": "worker-2"}
    assert not (tmp_path / "busbar/turn").exists()


def test_a_kubelet_without_the_right_to_take_turns_says_so_at_once(tmp_path: Path) -> None:
    done = taken(tmp_path, {}, FORBIDDEN="yes", later="exit 99")
    assert done.returncode == 1
    assert (
        "the kubelet may not take a turn to restart: Error from server (Forbidden): no. Fix: " in done.stderr
    )


@pytest.mark.parametrize("limits", ["", "worker-11 gpu 2 keep never 0 0\n", "worker-1 gpu 2 keep\n"])
def test_without_a_limit_in_the_cluster_no_running_agent_restarts(tmp_path: Path, limits: str) -> None:
    done = taken(tmp_path, {}, limits=limits)
    assert (done.returncode, turns(tmp_path)) == (1, {})
    assert "ConfigMap busbar-rollout/workers does not list worker-1" in done.stderr


JOBS = """
timeout() {
  [[ $* == *"spec.nodeName=worker-1,status.phase=Running"* ]] && cat "$ROOT/pods"
}
"""


def restarted(
    root: Path, jobs: str, pods: str, later: str = ":", call: str = "take_turn; echo restarts"
) -> subprocess.CompletedProcess[str]:
    (root / "pods").write_text(pods)
    return taken(root, {}, limits=f"worker-1 gpu 1 {jobs} never 0 0\n", later=later, call=JOBS + call)


OTHERS = "DaemonSet gpu-operator/plugin-x\nReplicaSet site/web-1\n site/bare\n"


@pytest.mark.parametrize("jobs", ["wait", "refuse"])
def test_pods_that_are_not_of_a_job_hold_no_restart_up(tmp_path: Path, jobs: str) -> None:
    assert restarted(tmp_path, jobs, OTHERS).stdout == "restarts\n"


def test_a_restart_waits_for_the_end_of_jobs_and_names_them(tmp_path: Path) -> None:
    jobs = OTHERS + "MPIJob team/train-worker-0\nJob team/evaluate-x\n"
    done = restarted(tmp_path, "wait", jobs, later=">$ROOT/pods")
    assert done.stdout == "restarts\n"
    assert "waits for the end of jobs: team/train-worker-0 team/evaluate-x\n" in done.stderr


def test_a_job_that_does_not_end_fails_the_update_and_nothing_restarts(tmp_path: Path) -> None:
    done = restarted(tmp_path, "wait", "MPIJob team/train-worker-0\n")
    assert (done.returncode, done.stdout, turns(tmp_path)) == (1, "", {})
    assert "jobs still run here after 60 s: team/train-worker-0. Fix: " in done.stderr


def test_a_restart_is_refused_while_a_job_runs(tmp_path: Path) -> None:
    done = restarted(tmp_path, "refuse", "MPIJob team/train-worker-0\n", later="exit 99")
    assert (done.returncode, turns(tmp_path)) == (1, {})
    assert "jobs run here: team/train-worker-0; the agent was not restarted. Fix: " in done.stderr


@pytest.mark.parametrize("jobs", ["wait", "refuse"])
def test_without_an_answer_about_jobs_nothing_restarts(tmp_path: Path, jobs: str) -> None:
    done = restarted(tmp_path, jobs, "", call="timeout() { return 1; }; take_turn")
    assert (done.returncode, turns(tmp_path)) == (1, {})
    assert "unknown, the API does not answer" in done.stderr


def test_only_the_own_turn_is_ended(tmp_path: Path) -> None:
    (tmp_path / "busbar").mkdir()
    (tmp_path / "busbar/turn").write_text("gpu-0\n")
    done = taken(tmp_path, {"gpu-0": "worker-2"}, call="end_turn")
    assert (done.returncode, turns(tmp_path)) == (0, {"gpu-0": "worker-2"})
    assert not (tmp_path / "busbar/turn").exists()


INSTALL = """
for part in begin acquire_lock k3s_refuse_other_role claim_host record_preexisting_files k3s_download \
  restart_after_drift k3s_install_binary k3s_config k3s_unit k3s_memlock k3s_sysctl apply_labels \
  k3s_record_machine k3s_node_address k3s_ready_seconds k3s_version poll; do
  eval "$part() { :; }"
done
with_rotations() { shift; "$@"; }
for part in take_turn k3s_await end_turn k3s_start record_applied_hash pause_turn; do
  eval "$part() { echo $part; }"
done
k3s_is_current() { $CURRENT; }
systemctl() { $ACTIVE; }
install_agent | grep -v '^{'
"""


@pytest.mark.parametrize(
    ("current", "active", "first"),
    [("false", "true", ["take_turn"]), ("false", "false", []), ("true", "true", [])],
)
def test_only_a_running_agent_that_has_to_restart_takes_a_turn(
    current: str, active: str, first: list[str]
) -> None:
    done = run("k3s-agent", INSTALL, CURRENT=current, ACTIVE=active)
    assert done.stdout.split() == [
        *(*first, "k3s_start", "k3s_await", "record_applied_hash", "pause_turn", "end_turn")
    ]


def hash_of(root: Path, config: str) -> str:
    (root / "config.yaml").write_text(config)
    places = f"K3S_CONFIG_DIR={root}; K3S_SHA256=a; find() {{ :; }}; "
    done = run("k3s-agent", places + "desired_state_hash k3s-agent")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_labels_and_taints_restart_no_agent_and_everything_else_does(tmp_path: Path) -> None:
    plain = "kubelet-arg:\n- v=1\nnode-name: a\n"
    listed = "kubelet-arg:\n- v=1\nnode-label:\n- a=b\n- c=d\nnode-name: a\nnode-taint:\n- x=y:NoSchedule\n"
    assert hash_of(tmp_path, plain) == hash_of(tmp_path, listed)
    assert hash_of(tmp_path, plain) != hash_of(tmp_path, plain.replace("v=1", "v=2"))
    assert hash_of(tmp_path, listed) != hash_of(tmp_path, listed.replace("node-name: a", "node-name: b"))


def test_kubelets_get_the_right_to_take_turns_and_the_limits_of_their_pools(tmp_path: Path) -> None:
    cluster(tmp_path, "s-1|a|True|yes")
    payload = {"servers": "s-1", "rollout": "w-1 gpu 2 keep\nw-2 gpu 2 keep"}
    done, _ = performed(tmp_path, "k3s-nodes", "note_hosts", payload, NODE_NAME="s-1")
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all((tmp_path / "applied").read_text()))
    noted = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    assert noted == {
        "busbar-nodes": {"servers": "s-1"},
        "workers": {"workers": "w-1 gpu 2 keep\nw-2 gpu 2 keep"},
    }
    [role] = [each for each in objects if each["kind"] == "Role"]
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "verbs": ["get", "list", "create", "patch", "delete"],
        }
    ]
