"""The owner mark: what an installation writes, and when a removal touches nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from busbar.hosts import scripts
from tests.unit.hosts.bash import output, run

MINE = {"OWNER": "busbar/dev/worker-a", "INSTALL_ID": "1111"}


def host(
    tmp_path: Path, call: str, script: str = "k3s-agent", **values: str
) -> subprocess.CompletedProcess[str]:
    return run(script, f"STATE_DIR={tmp_path}/busbar; {call}", **values)


def claimed(tmp_path: Path, role: str = "worker", **values: str) -> None:
    done = host(tmp_path, f'claim_host "{role}"', **{**MINE, **values})
    assert done.returncode == 0, done.stderr


def test_a_host_is_removed_by_the_resource_that_installed_it(tmp_path: Path) -> None:
    claimed(tmp_path)
    assert host(tmp_path, "may_remove", **MINE).returncode == 0


def test_a_host_that_was_renamed_is_not_removed_under_its_old_name(tmp_path: Path) -> None:
    claimed(tmp_path)
    claimed(tmp_path, OWNER="busbar/dev/worker-b")
    done = host(tmp_path, "may_remove", **MINE)
    assert done.returncode == 1
    assert "now belongs to busbar/dev/worker-b, not to busbar/dev/worker-a; no changes made" in done.stderr


def test_a_host_of_another_cluster_with_equal_names_is_not_removed(tmp_path: Path) -> None:
    claimed(tmp_path)
    assert host(tmp_path, "may_remove", **{**MINE, "INSTALL_ID": "2222"}).returncode == 1


@pytest.mark.parametrize("state", ["none", "unmarked"])
def test_a_host_without_a_mark_is_not_removed(tmp_path: Path, state: str) -> None:
    if state == "unmarked":
        (tmp_path / "busbar").mkdir()
    done = host(tmp_path, "may_remove", **MINE)
    assert done.returncode == 1
    assert "owner is missing); no changes made" in done.stderr


def test_by_hand_the_mark_of_any_owner_is_enough(tmp_path: Path) -> None:
    claimed(tmp_path)
    assert host(tmp_path, "may_remove").returncode == 0


@pytest.mark.parametrize(
    ("script", "verb"),
    [("k3s-agent", "remove_agent"), ("k3s-server", "remove_server"), ("haproxy", "remove_balancer")],
)
def test_a_removal_on_a_host_that_is_not_its_own_ends_well_and_runs_nothing(
    tmp_path: Path, script: str, verb: str
) -> None:
    nothing = "; ".join(
        f"{tool}() {{ echo {tool} was called; }}" for tool in ("systemctl", "rm", "find", "ip", "ps")
    )
    claimed(tmp_path, OWNER="busbar/dev/another")
    # may_remove itself may clean up after an interrupted removal.
    done = host(tmp_path, f"{nothing}; rm() {{ :; }}; {verb}", script, **MINE)
    assert (done.returncode, done.stdout) == (0, '{"node":"worker-1","removed":false}\n'), done.stderr
    assert (tmp_path / "busbar/owner").exists()


def test_a_host_of_another_cluster_is_not_installed_on(tmp_path: Path) -> None:
    claimed(tmp_path)
    done = host(tmp_path, "claim_host worker", **{**MINE, "INSTALL_ID": "2222"})
    assert done.returncode == 1
    assert "belongs to another cluster (busbar/dev/worker-a). Fix: remove it there" in done.stderr


def test_a_host_changes_its_role_only_after_it_was_removed(tmp_path: Path) -> None:
    claimed(tmp_path, "load balancer")
    done = host(tmp_path, "claim_host worker", **MINE)
    assert done.returncode == 1
    assert "is already a load balancer (busbar/dev/worker-a)" in done.stderr


def test_a_renamed_stack_keeps_its_hosts(tmp_path: Path) -> None:
    claimed(tmp_path)
    claimed(tmp_path, OWNER="busbar/prod/worker-a")
    assert host(tmp_path, "may_remove", **{**MINE, "OWNER": "busbar/prod/worker-a"}).returncode == 0


def test_an_installation_by_hand_may_be_taken_over_by_a_stack(tmp_path: Path) -> None:
    assert host(tmp_path, "claim_host worker").returncode == 0
    claimed(tmp_path)


def test_the_mark_is_readable_for_root_only(tmp_path: Path) -> None:
    claimed(tmp_path)
    assert (tmp_path / "busbar").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "busbar/owner").read_text() == (
        "role=worker\nowner=busbar/dev/worker-a\ninstall_id=1111\n"
    )


def installed_server(tmp_path: Path, config: str) -> str:
    (tmp_path / "data/server/db/etcd/member").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/config.yaml").write_text(config)
    return f"K3S_DATA_DIR={tmp_path}/data; K3S_CONFIG_DIR={tmp_path}/etc; "


def refused(tmp_path: Path, installed: str, wanted: str) -> subprocess.CompletedProcess[str]:
    line = scripts.stdin("k3s-server", {"config": wanted}).partition("\n")[0]
    places = installed_server(tmp_path, installed)
    return run("k3s-server", places + "refuse_new_identity", NODE_NAME="server-b", PAYLOAD=line)


def test_the_same_token_with_the_pinned_ca_is_the_same_token(tmp_path: Path) -> None:
    pinned = f"token: K10{'a' * 64}::server:x\n"
    assert refused(tmp_path, "node-name: server-b\ntoken: x\n", pinned).returncode == 0


def test_a_fresh_server_may_have_any_name(tmp_path: Path) -> None:
    assert run("k3s-server", f"K3S_DATA_DIR={tmp_path}; refuse_new_identity").returncode == 0


def test_the_machine_is_told_by_a_digest_of_its_machine_id() -> None:
    assert len(output("k3s-agent", "machine").strip()) == 8
