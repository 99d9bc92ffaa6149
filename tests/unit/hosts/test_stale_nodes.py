"""Nodes of workers that are not configured any more: which are drained and deleted, and which stay."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.hosts.nodes import cluster, performed

SERVER = "s-1|a|True|yes"


def removed(
    root: Path, *configured: str, before: str = ""
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    workers = {"workers": "\n".join(configured)}
    return performed(root, "k3s-stale-nodes", f"{before}\nmain", workers, NODE_NAME="s-1")


def test_a_worker_that_left_the_configuration_is_drained_and_deleted(tmp_path: Path) -> None:
    cluster(tmp_path, SERVER, "w-1|aaaa|True|", "w-2|bbbb|True|")
    done, log = removed(tmp_path, "w-2")
    assert log == ["w-1 drained", "w-1 deleted"], done.stderr
    assert done.stdout == '{"node":"s-1","deleted":["w-1"]}\n'


def test_workers_in_the_configuration_and_servers_stay(tmp_path: Path) -> None:
    cluster(tmp_path, SERVER, "w-1|aaaa|True|", "w-2|bbbb|Unknown|")
    done, log = removed(tmp_path, "w-1", "w-2", "w-3")
    assert (done.returncode, done.stdout, log) == (0, '{"node":"s-1","deleted":[]}\n', []), done.stderr


def test_a_worker_that_is_configured_in_capital_letters_stays(tmp_path: Path) -> None:
    cluster(tmp_path, SERVER, "w-1|aaaa|True|")
    assert removed(tmp_path, "W-1")[1] == []


def test_a_node_that_somebody_else_has_added_stays(tmp_path: Path) -> None:
    cluster(tmp_path, SERVER, "w-1|aaaa|True|", "guest||True|")
    assert removed(tmp_path, "w-1")[1] == []


def test_the_last_workers_may_leave_too(tmp_path: Path) -> None:
    cluster(tmp_path, SERVER, "w-1|aaaa|True|")
    assert removed(tmp_path)[1] == ["w-1 drained", "w-1 deleted"]


def test_without_the_list_of_workers_no_node_is_touched(tmp_path: Path) -> None:
    cluster(tmp_path, SERVER, "w-1|aaaa|True|")
    done, log = performed(tmp_path, "k3s-stale-nodes", "main", {}, NODE_NAME="s-1")
    assert (done.returncode, log) == (1, [])
    assert "no list of the configured workers" in done.stderr


def test_without_an_answer_of_the_api_no_node_is_touched(tmp_path: Path) -> None:
    cluster(tmp_path, SERVER, "w-1|aaaa|True|")
    done, log = removed(tmp_path, before="cluster_nodes() { return 1; }")
    assert (done.returncode, log) == (1, [])
    assert "s-1: the Kubernetes API on this server does not answer. Fix: " in done.stderr


def test_the_node_of_a_worker_that_is_gone_is_deleted_without_a_drain(tmp_path: Path) -> None:
    cluster(tmp_path, SERVER, "w-1|aaaa|Unknown|", "w-2|bbbb|True|")
    done, log = removed(tmp_path, "w-2")
    assert log == ["w-1 deleted"]
    assert "Node w-1 is not Ready: nothing there can be drained" in done.stderr


def test_the_old_node_of_a_renamed_worker_is_deleted_without_waiting_for_its_pods(tmp_path: Path) -> None:
    cluster(tmp_path, SERVER, "w-1|aaaa|True|", "w-9|aaaa|True|")
    assert removed(tmp_path, "w-9")[1] == ["w-1 deleted"]


@pytest.mark.parametrize("leaving", [3, 23])
def test_a_node_that_cannot_be_deleted_is_named_after_all_others_have_gone(
    tmp_path: Path, leaving: int
) -> None:
    names = [f"w-{number}" for number in range(leaving)]
    cluster(tmp_path, SERVER, *(f"{name}|m-{name}|True|" for name in names))
    # Only the log counts here: the file of Nodes is not made for several writers.
    keeps_one = 'delete_node() { [[ $1 != w-1 ]] && echo "$1 deleted" >>"$ROOT/log"; }'
    done, log = removed(tmp_path, before=keeps_one)
    assert done.returncode == 1
    assert "s-1: deleting Node w-1 failed. Fix: " in done.stderr
    assert "s-1: these Nodes could not be deleted: w-1. Fix: " in done.stderr
    assert sorted(line for line in log if "deleted" in line) == sorted(
        f"{name} deleted" for name in names if name != "w-1"
    )


def test_a_drain_that_does_not_end_in_time_does_not_keep_the_node(tmp_path: Path) -> None:
    cluster(tmp_path, SERVER, "w-1|aaaa|True|")
    slow = 'eval "$(declare -f api | sed "s/^api/answered/")"\n'
    slow += 'api() { [[ $2 != drain ]] || return 1; answered "$@"; }'
    done, log = removed(tmp_path, before=slow)
    assert log == ["w-1 deleted"]
    assert (
        "drain of w-1 timed out after 300 s (a disruption budget?); deleting the Node anyway" in done.stderr
    )
