"""The drain of a worker before its agent restarts."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from busbar.kube.nodes import CORDONED, DRAINED, QUARANTINE, Note
from tests.unit.hosts.bash import output, run

# The API that the kubelet sees: `node` is what CORDON_STATE prints, `pods` has lines
# "KIND|NAMESPACE/NAME|DELETED".
# A pod in `kept` cannot be evicted; its line is what the API answers. LATER runs after each look.
API = r"""
poll() { shift; "$@"; }
as_kubelet() {
  local pod
  case "$*" in
    "get node "*"{.spec.unschedulable}") cut -d'|' -f1 "$ROOT/node" ;;
    "get node "*busbar/cordoned*) cat "$ROOT/node" ;;
    "get node "*kubeletVersion*) [[ -z ${RUNS:-} ]] || echo "$RUNS" ;;
    "patch node "*why*true*) echo 'true|busbar|{"cordoned":true}|' >"$ROOT/node" ;;
    "patch node "*'"spec":{"unschedulable":null}'*) sed -i 's/^true|[^|]*|[^|]*/||/' "$ROOT/node" ;;
    "patch node "*null*) sed -i 's/{[^|]*}|/|/' "$ROOT/node" ;;
    "get pods -A --field-selector spec.nodeName=worker-1,status.phase!=Succeeded,status.phase!=Failed "*)
      cat "$ROOT/pods" ;;
    *"create --raw "*/eviction*)
      pod=$(sed 's/.*"namespace":"\(.*\)","name":"\(.*\)"}}/\1\/\2/')
      echo "$pod" >>"$ROOT/evicted"
      if grep -s "^$pod " "$ROOT/kept" >&2; then return 1; fi
      sed -i "\\,|$pod|,d" "$ROOT/pods" ;;
    *) echo "unexpected: $*" >&2; return 1 ;;
  esac
}
sleep() { SECONDS=$((SECONDS + 10)); LATER; }
"""
WEB = "ReplicaSet|site/web-1|\n"
STAYING = "DaemonSet|gpu-operator/plugin-x|\nNode|kube-system/static|\n|site/bare|\n"
JOBS = "MPIJob|team/train-worker-0|\nJob|team/evaluate-x|\nPyTorchJob|team/fit-1|\n"
FREE = "|||"
OURS = 'true|busbar|{"cordoned":true}|'
BUDGET = "The disruption budget web needs 2 healthy pods and has 2 currently"
# As kubectl -v=8 prints it: the body of the answer, then the error, which does not name the budget.
BLOCKED = (
    f'I1122 "Response Body" body="{{\\"causes\\":[{{\\"message\\":\\"{BUDGET}\\"}}]}}" '
    "Error from server (TooManyRequests): Cannot evict pod"
)


def drained(
    root: Path,
    pods: str,
    *,
    kept: str = "",
    node: str = FREE,
    later: str = ":",
    call: str = "drain_node",
) -> subprocess.CompletedProcess[str]:
    (root / "pods").write_text(pods)
    (root / "kept").write_text(kept)
    (root / "node").write_text(f"{node}\n")
    (root / "evicted").touch()
    start = f"LATER() {{ {later}; }};"
    return run("k3s-agent", f"{start}{API}{call}", ROOT=str(root), DRAIN_SECONDS="60")


def evicted(root: Path) -> list[str]:
    return (root / "evicted").read_text().split()


def test_pods_that_start_again_elsewhere_are_evicted_from_a_cordoned_node(tmp_path: Path) -> None:
    done = drained(tmp_path, WEB + "StatefulSet|site/db-0|\n" + STAYING)
    assert done.returncode == 0, done.stderr
    assert evicted(tmp_path) == ["site/web-1", "site/db-0"]
    assert (tmp_path / "node").read_text() == f"{OURS}\n"


def test_pods_of_jobs_and_daemon_sets_and_those_without_a_controller_stay(tmp_path: Path) -> None:
    done = drained(tmp_path, STAYING + JOBS, later="exit 99")
    assert (done.returncode, evicted(tmp_path)) == (0, []), done.stderr


def test_a_pod_that_ends_already_is_waited_for_and_not_evicted_again(tmp_path: Path) -> None:
    done = drained(tmp_path, "ReplicaSet|site/web-1|2026-01-01T00:00:00Z\n", later=">$ROOT/pods")
    assert (done.returncode, evicted(tmp_path)) == (0, []), done.stderr
    assert "draining; remaining pods: site/web-1 (ending)" in done.stderr


def test_a_budget_that_allows_an_eviction_later_holds_the_drain_up(tmp_path: Path) -> None:
    done = drained(tmp_path, WEB, kept=f"site/web-1 {BLOCKED}\n", later=">$ROOT/kept")
    assert (done.returncode, evicted(tmp_path)) == (0, ["site/web-1", "site/web-1"]), done.stderr


def test_a_drain_that_a_budget_blocks_names_pod_and_budget_and_uncordons_the_node(tmp_path: Path) -> None:
    done = drained(tmp_path, WEB + "StatefulSet|site/db-0|\n", kept=f"site/web-1 {BLOCKED}\n")
    assert done.returncode == 1
    assert (
        f"drain timed out after 60 s: site/web-1 ({BUDGET}); the agent was not restarted. Fix: "
        in done.stderr
    )
    assert (tmp_path / "node").read_text() == f"{FREE}\n"


def test_what_else_the_api_refuses_an_eviction_for_is_named_too(tmp_path: Path) -> None:
    done = drained(tmp_path, WEB, kept="site/web-1 Error from server (InternalError): two budgets\n")
    assert "site/web-1 (site/web-1 Error from server (InternalError): two budgets); " in done.stderr


def test_a_pod_that_is_gone_before_its_eviction_does_not_hold_the_drain_up(tmp_path: Path) -> None:
    gone = "site/web-1 Error from server (NotFound): pods not found\n"
    done = drained(tmp_path, WEB, kept=gone, later="[[ -s $ROOT/pods ]] && >$ROOT/pods || exit 99")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("true|kubectl||", "true|kubectl||"),  # by an admin, before
        (OURS.replace("busbar", "kubectl"), "true|kubectl||"),  # by an admin, after ours was ended
        (OURS, FREE),
        (OURS.replace("busbar", ""), FREE),
        (OURS.replace("busbar", "ancient-changes"), FREE),
        (f'{OURS}{{"cordoned":true}}', 'true|busbar||{"cordoned":true}'),
        (f'{OURS}{{"cordoned":false}}', '|||{"cordoned":false}'),
        ('true|kubectl|{"cordoned":false}|', "true|kubectl||"),
        (FREE, FREE),
    ],
)
def test_only_a_node_that_is_cordoned_for_an_update_alone_is_uncordoned(
    tmp_path: Path, before: str, after: str
) -> None:
    done = drained(tmp_path, "", node=before, call="drain_node; uncordon")
    assert (done.returncode, (tmp_path / "node").read_text()) == (0, f"{after}\n"), done.stderr


def test_cordon_and_note_are_one_patch_of_the_user_agent_that_the_program_has_too() -> None:
    api = 'as_kubelet() { [[ $1 == get ]] || printf "%s\\n" "$@"; }'
    lines = run("k3s-agent", f"{api}; cordon 2>&1").stdout.splitlines()
    patch = json.loads(lines[-1])
    assert patch["spec"] == {"unschedulable": True}
    note = Note.parse(patch["metadata"]["annotations"][CORDONED])
    assert note == Note("restart of K3s", "an update", note.since, cordoned=True)
    assert datetime.fromisoformat(note.since).utcoffset() == timedelta(0)
    assert lines[lines.index("--field-manager") + 1] == "busbar"


def test_the_host_reads_all_notes_of_a_node_and_finds_the_cordons_that_the_program_writes() -> None:
    assert all(key in output("k3s-agent", 'echo "$CORDON_STATE"') for key in (CORDONED, QUARANTINE, DRAINED))
    assert '"cordoned":true' in Note("fan", cordoned=True).text


@pytest.mark.parametrize(
    ("when", "runs", "wants"),
    [
        ("never", "v1.35.5+k3s1", False),
        ("upgrade", "v1.35.5+k3s1", True),
        ("upgrade", "v1.35.6+k3s1", False),
        ("upgrade", "", True),  # no answer
        ("always", "v1.35.6+k3s1", True),
    ],
)
def test_a_pool_says_for_which_restarts_its_workers_are_drained(
    tmp_path: Path, when: str, runs: str, wants: bool
) -> None:
    call = f"{API} poll() {{ :; }}; drain_node() {{ echo drain; }}; prepare_restart"
    values = {"RUNNING_JOBS": "keep", "DRAIN": when, "RUNS": runs, "VERSION": "v1.35.6+k3s1"}
    done = run("k3s-agent", call, ROOT=str(tmp_path), **values)
    assert done.stdout == ("drain\n" if wants else ""), done.stderr
