"""Nodes and etcd members: which are deleted for a replaced machine or at a removal, and which are kept."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.hosts.nodes import cluster, performed


def prepared(
    root: Path, machines: str, servers: str = "", **values: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    payload = {"machines": machines, "servers": servers}
    return performed(root, "k3s-nodes", "main", payload, NODE_NAME="s-1", VERB="install", **values)


def test_the_node_of_a_replaced_worker_is_deleted_before_the_new_machine_joins(tmp_path: Path) -> None:
    cluster(tmp_path, "w-1|aaaa|Unknown|", "w-2|bbbb|True|")
    done, log = prepared(tmp_path, "w-1 cccc\nw-2 bbbb")
    assert log == ["w-1 deleted"], done.stderr
    assert done.stdout == '{"node":"s-1","ca_sha256":""}\n'


def test_the_password_of_a_replaced_machine_is_gone_before_the_new_one_joins(tmp_path: Path) -> None:
    cluster(tmp_path, "W-1|aaaa|Unknown|")
    assert prepared(tmp_path, "W-1 cccc")[0].returncode == 0
    assert (tmp_path / "secrets").read_text() == "w-1.node-password.k3s\n"


def test_a_server_tells_the_ca_of_its_cluster(tmp_path: Path) -> None:
    cluster(tmp_path, "s-1|a|True|yes")
    (tmp_path / "server").mkdir()
    (tmp_path / "server/token").write_text(f"K10{'b' * 64}::server:secret\n")
    call = f"K3S_DATA_DIR={tmp_path}; main"
    done, _ = performed(tmp_path, "k3s-nodes", call, {"machines": ""}, VERB="install", NODE_NAME="s-1")
    assert done.stdout == f'{{"node":"s-1","ca_sha256":"{"b" * 64}"}}\n'


def test_a_replaced_server_leaves_etcd_before_its_node_is_deleted(tmp_path: Path) -> None:
    cluster(tmp_path, "s-2|aaaa|Unknown|yes")
    assert prepared(tmp_path, "s-2 cccc")[1] == ["s-2 removed by this server", "s-2 deleted"]


def test_a_machine_that_is_only_off_keeps_its_node(tmp_path: Path) -> None:
    cluster(tmp_path, "w-1|aaaa|Unknown|", "s-2|bbbb|Unknown|yes")
    assert prepared(tmp_path, "w-1 aaaa\ns-2 bbbb")[1] == []


# A Node of 2026-11-01, and a preflight a second before and after it.
CREATED, EARLIER, LATER = "2026-11-01T00:00:00Z", 1793491199, 1793491201


def test_a_machine_that_was_installed_anew_under_its_old_machine_id_is_replaced(tmp_path: Path) -> None:
    cluster(tmp_path, f"w-1|aaaa|Unknown||{CREATED}", f"s-2|bbbb|Unknown|yes|{CREATED}")
    done, log = prepared(tmp_path, f"w-1 aaaa {LATER}\ns-2 bbbb {LATER}")
    assert log == ["w-1 deleted", "s-2 removed by this server", "s-2 deleted"], done.stderr


def test_a_node_without_a_machine_is_replaced_where_its_host_was_found_empty(tmp_path: Path) -> None:
    cluster(tmp_path, f"w-1||Unknown||{CREATED}")
    assert prepared(tmp_path, f"w-1 aaaa {LATER}")[1] == ["w-1 deleted"]


def test_a_node_that_was_made_after_preflight_found_its_host_empty_is_kept(tmp_path: Path) -> None:
    cluster(tmp_path, f"w-1|aaaa|Unknown||{CREATED}")
    assert prepared(tmp_path, f"w-1 aaaa {EARLIER}\nw-9 dddd {LATER}")[1] == []


def test_a_node_that_is_ready_on_another_machine_stops_the_update(tmp_path: Path) -> None:
    cluster(tmp_path, "w-1|aaaa|True|")
    done, log = prepared(tmp_path, "w-1 cccc")
    assert (done.returncode, log) == (1, [])
    assert "Node w-1 is Ready on another machine than the one that is configured. Fix: " in done.stderr


def test_a_node_of_an_unknown_machine_is_left_alone(tmp_path: Path) -> None:
    cluster(tmp_path, "w-1||Unknown|")
    done, log = prepared(tmp_path, "w-1 cccc\nw-9 dddd")
    assert (done.returncode, log) == (0, [])


def test_a_node_is_kept_while_the_api_does_not_say_that_it_is_not_ready(tmp_path: Path) -> None:
    cluster(tmp_path, "w-1|aaaa|Unknown|")
    broken = "node_field() { return 1; }; replace_node w-1"
    done, log = performed(tmp_path, "k3s-nodes", broken)
    assert (done.returncode, log) == (1, [])


def test_a_node_counts_as_ready_while_the_api_does_not_answer(tmp_path: Path) -> None:
    cluster(tmp_path)
    done, _ = performed(tmp_path, "k3s-nodes", "node_field() { return 1; }; node_is_ready w-1 && echo ready")
    assert done.stdout == "ready\n"


def test_the_first_bring_up_has_nothing_to_prepare(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    done, _ = performed(
        tmp_path,
        "k3s-nodes",
        "systemctl() { return 3; }; main",
        {"machines": "w-1 a"},
        VERB="install",
        NODE_NAME="s-1",
    )
    assert done.stdout == '{"node":"s-1","ca_sha256":""}\n', done.stderr


def prepared_after_removal(root: Path, **values: str) -> subprocess.CompletedProcess[str]:
    """On a server whose Node was deleted; K3s does not run there."""
    cluster(root, "s-1|aaaa|Unknown|yes")
    (root / "server/db/etcd").mkdir(parents=True)
    (root / "server/db/etcd/tombstone").touch()
    call = f"K3S_DATA_DIR={root}; ETCD_DATA=$K3S_DATA_DIR/server/db/etcd; systemctl() {{ return 3; }}; main"
    payload = {"machines": "s-1 cccc"}
    done, log = performed(root, "k3s-nodes", call, payload, VERB="install", NODE_NAME="s-2", **values)
    assert log == []
    return done


def test_a_server_that_etcd_has_removed_prepares_nothing_and_stops_no_update(tmp_path: Path) -> None:
    done = prepared_after_removal(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "s-2: etcd has removed this server, so nothing is prepared here" in done.stderr


def test_server_1_that_etcd_has_removed_is_to_be_joined_again_first(tmp_path: Path) -> None:
    done = prepared_after_removal(tmp_path, AFTER="true")
    assert done.returncode == 1
    assert done.stderr.endswith(
        "etcd has removed this server, because its Node was deleted. Fix: busbar up STACK --converge s-2\n"
    )


def test_a_replaced_server_1_waits_until_k3s_runs_on_the_server_whose_cluster_it_belongs_to(
    tmp_path: Path,
) -> None:
    (tmp_path / "log").touch()
    stopped = f"ETCD_DATA={tmp_path}; systemctl() {{ return 3; }}; START_DEADLINE=0; main"
    done, _ = performed(
        tmp_path, "k3s-nodes", stopped, {"machines": "s-1 a"}, VERB="install", NODE_NAME="s-2"
    )
    assert done.returncode == 1
    assert "K3s is installed here and not running" in done.stderr
    assert "Fix: " in done.stderr


@pytest.mark.parametrize(
    ("state", "enabled", "starts"),
    [("inactive", 0, True), ("inactive", 1, False), ("failed", 0, False), ("active", 0, False)],
)
def test_k3s_that_somebody_has_stopped_is_started_and_that_of_a_restore_is_not(
    tmp_path: Path, state: str, enabled: int, starts: bool
) -> None:
    (tmp_path / "log").touch()
    systemctl = f"""
    systemctl() {{
      case $* in
        "is-enabled --quiet k3s") return {enabled} ;;
        "is-active k3s") echo {state}; [[ {state} == active ]] ;;
        *start*) echo "systemctl $*" >>{tmp_path}/log ;;
        *) return 3 ;;
      esac
    }}
    ETCD_DATA={tmp_path} START_DEADLINE=0
    main"""
    _, log = performed(
        tmp_path, "k3s-nodes", systemctl, {"machines": "s-1 a"}, VERB="install", NODE_NAME="s-2"
    )
    assert log == (["systemctl --no-block start k3s"] if starts else [])


def test_a_server_without_k3s_is_an_error_where_the_cluster_has_to_know_its_hosts(tmp_path: Path) -> None:
    """The engine would not run the step again, and the list of an earlier update would stay."""
    (tmp_path / "log").touch()
    stopped = "systemctl() { return 3; }; START_DEADLINE=0; main"
    done, _ = performed(tmp_path, "k3s-nodes", stopped, VERB="install", NODE_NAME="s-1", AFTER="true")
    assert done.returncode == 1
    assert "s-1: K3s is not running here, so the cluster does not know its configured hosts" in done.stderr


def test_a_lost_server_that_is_not_configured_any_more_leaves_before_anything_else(tmp_path: Path) -> None:
    cluster(tmp_path, "s-1|a|Unknown|yes", "s-2|b|True|yes", "s-3|c|True|yes", "w-1|d|Unknown|")
    done, log = prepared(tmp_path, "", servers="s-2\ns-3\ns-10")
    assert log == ["s-1 removed by this server", "s-1 deleted"], done.stderr
    assert "server s-1 is no longer configured, and not Ready" in done.stderr


@pytest.mark.parametrize(("state", "listed"), [("True", "s-2"), ("Unknown", "s-1\ns-2")])
def test_a_server_that_runs_or_is_configured_stays_a_member(tmp_path: Path, state: str, listed: str) -> None:
    cluster(tmp_path, f"s-1|a|{state}|yes", "s-2|b|True|yes")
    assert prepared(tmp_path, "", servers=listed)[1] == []


def removed(root: Path, node: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    return performed(root, "k3s-nodes", "main", NODE_NAME=node)


def test_a_server_that_is_gone_leaves_etcd_through_another_one(tmp_path: Path) -> None:
    cluster(tmp_path, "s-1|a|True|yes", "s-3|c|Unknown|yes")
    prepared(tmp_path, "", servers="s-1", AFTER="true")
    # It was lost after the step that would have removed it.
    cluster(tmp_path, "s-1|a|True|yes", "s-3|c|Unknown|yes")
    (tmp_path / "log").write_text("")
    done, log = removed(tmp_path, "s-3")
    assert log == ["s-3 removed by this server", "s-3 deleted"], done.stderr


def test_without_the_list_of_servers_no_node_is_touched(tmp_path: Path) -> None:
    cluster(tmp_path, "s-1|a|True|yes", "s-3|c|Unknown|yes")
    done, log = removed(tmp_path, "s-3")
    assert (done.returncode, log) == (0, [])
    assert "no list of its configured servers" in done.stderr


def test_a_configured_server_stays_a_member_when_only_its_resource_is_removed(tmp_path: Path) -> None:
    cluster(tmp_path, "s-1|a|True|yes", "s-3|c|Unknown|yes")
    prepared(tmp_path, "", servers="s-1\ns-3", AFTER="true")
    (tmp_path / "log").write_text("")
    done, log = removed(tmp_path, "s-3")
    assert (done.returncode, log) == (0, [])
    assert "the configuration contains server s-3; its Node stays" in done.stderr


@pytest.mark.parametrize("state", ["systemctl() { return 3; }", "touch $ROOT/teardown"])
def test_a_server_without_a_cluster_that_stays_says_so(tmp_path: Path, state: str) -> None:
    cluster(tmp_path, "s-1|a|True|yes")
    prepared(tmp_path, "", servers="s-1", AFTER="true")
    (tmp_path / "log").write_text("")
    done, log = performed(tmp_path, "k3s-nodes", f"{state}; main", NODE_NAME="s-9")
    assert (done.stdout, log) == ('{"node":"s-9","cluster":false}\n', [])


def test_no_server_leaves_etcd_while_the_whole_cluster_is_removed(tmp_path: Path) -> None:
    cluster(tmp_path, "s-1|a|Unknown|yes", "s-3|c|True|yes")
    assert performed(tmp_path, "k3s-nodes", "main", VERB="teardown")[0].returncode == 0
    done, log = left(tmp_path, PEERS="10.0.0.1", DEAD="https://10.0.0.1:6443")
    assert (done.returncode, log) == (0, [])
    assert "the whole cluster is being removed" in done.stderr


def test_an_old_announcement_of_a_removal_counts_no_more(tmp_path: Path) -> None:
    cluster(tmp_path, "s-1|a|True|yes", "s-2|b|True|yes", "s-3|c|True|yes")
    performed(tmp_path, "k3s-nodes", "touch -d '61 minutes ago' $TEARDOWN")
    assert "s-3 removed by https://10.0.0.1:6443" in left(tmp_path, PEERS="10.0.0.1")[1]


def test_the_announcement_ends_when_the_cluster_stays(tmp_path: Path) -> None:
    cluster(tmp_path, "s-1|a|True|yes", "s-2|b|True|yes", "s-3|c|True|yes")
    performed(tmp_path, "k3s-nodes", "main", VERB="teardown")
    performed(tmp_path, "k3s-nodes", "main", VERB="keep", NODE_NAME="s-3")
    assert "s-3 removed by https://10.0.0.1:6443" in left(tmp_path, PEERS="10.0.0.1")[1]


def left(root: Path, **values: Any) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    (root / "data/server/db/etcd/member").mkdir(parents=True)
    call = f"stop_unit() {{ :; }}; K3S=/bin/true; K3S_DATA_DIR={root}/data; leave_cluster"
    return performed(root, "k3s-server", call, NODE_NAME="s-3", **values)


@pytest.mark.parametrize(
    ("others", "ready"),
    [(["s-1|a|True|yes", "s-2|b|Unknown|yes"], 1), (["s-1|a|False|yes"], 0)],
)
def test_no_server_leaves_where_etcd_would_lose_its_quorum(
    tmp_path: Path, others: list[str], ready: int
) -> None:
    cluster(tmp_path, *others, "s-3|c|True|yes")
    done, log = left(tmp_path, PEERS="10.0.0.1 10.0.0.2", STATE="active")
    assert (done.returncode, log) == (1, [])
    assert f"but only {ready} of the others are Ready: it needs s-3; no changes made" in done.stderr


@pytest.mark.parametrize(("state", "other"), [("inactive", "Unknown"), ("active", "True")])
def test_a_server_leaves_that_the_quorum_does_not_need(tmp_path: Path, state: str, other: str) -> None:
    cluster(tmp_path, "s-1|a|True|yes", f"s-2|b|{other}|yes", "s-3|c|True|yes")
    assert "s-3 deleted" in left(tmp_path, PEERS="10.0.0.1 10.0.0.2", STATE=state)[1]


def test_the_last_server_has_nobody_to_leave(tmp_path: Path) -> None:
    cluster(tmp_path, "s-3|c|True|yes")
    done, log = left(tmp_path, PEERS="10.0.0.1", DEAD="https://10.0.0.1:6443")
    assert (done.returncode, log) == (0, [])


@pytest.mark.parametrize(
    ("state", "status"), [("active", 1), ("activating", 1), ("inactive", 0), ("failed", 0)]
)
def test_without_any_answer_a_server_is_removed_only_after_somebody_stopped_it(
    tmp_path: Path, state: str, status: int
) -> None:
    cluster(tmp_path)
    (tmp_path / "data/server/db/etcd/member").mkdir(parents=True)
    call = f"api() {{ return 1; }}; systemctl() {{ echo {state}; }}; "
    call += f"K3S=/bin/true; K3S_DATA_DIR={tmp_path}/data; "
    done, _ = performed(tmp_path, "k3s-server", call + "leave_cluster", PEERS="10.0.0.1")
    assert done.returncode == status, done.stderr
    assert ("systemctl stop k3s, and retry" in done.stderr) is (status == 1)
