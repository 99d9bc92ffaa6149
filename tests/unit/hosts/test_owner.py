"""The owner mark: what an installation writes, and when a removal touches nothing."""

from __future__ import annotations

import pytest

from tests.unit.hosts.bash import Box

BY_HAND: dict[str, str] = {}
MINE = {"OWNER": "busbar/dev/worker-a", "INSTALL_ID": "1111"}
RENAMED = {**MINE, "OWNER": "busbar/dev/worker-b"}
OF_ANOTHER_CLUSTER = {**MINE, "INSTALL_ID": "2222"}


def claim(box: Box, owner: dict[str, str], role: str = "worker") -> None:
    box.output("k3s-agent", f'claim_host "{role}"', **owner)


@pytest.mark.parametrize("owners", [[MINE], [RENAMED, MINE], [BY_HAND, MINE]])
def test_a_host_is_removed_by_who_installed_it_last(box: Box, owners: list[dict[str, str]]) -> None:
    for owner in owners:
        claim(box, owner)
    assert box.run("k3s-agent", "may_remove", **MINE).returncode == 0
    assert box.run("k3s-agent", "may_remove").returncode == 0, "by hand the mark of any owner is enough"


@pytest.mark.parametrize(
    ("owner", "says"),
    [
        (RENAMED, "now belongs to busbar/dev/worker-b, not to busbar/dev/worker-a; no changes made"),
        (OF_ANOTHER_CLUSTER, "now belongs to busbar/dev/worker-a"),
        (None, "owner is missing); no changes made"),
    ],
)
@pytest.mark.parametrize(
    ("script", "remove"),
    [("k3s-agent", "remove_agent"), ("k3s-server", "remove_server"), ("haproxy", "remove_balancer")],
)
def test_a_removal_of_a_host_that_is_not_its_own_ends_well_and_runs_nothing(
    box: Box, owner: dict[str, str] | None, says: str, script: str, remove: str
) -> None:
    if owner:
        claim(box, owner)
    programs = "".join(f"{name}() {{ echo {name} called; }}; " for name in ("systemctl", "find", "ip", "ps"))
    # may_remove itself may clean up after an interrupted removal.
    done = box.run(script, f"{programs} rm() {{ :; }}; {remove}", **MINE)
    assert (done.returncode, done.stdout) == (0, '{"node":"worker-1","removed":false}\n'), done.stderr
    assert says in done.stderr
    assert box.has("state/owner") is (owner is not None)


@pytest.mark.parametrize(
    ("role", "owner", "says"),
    [
        ("worker", OF_ANOTHER_CLUSTER, "belongs to another cluster (busbar/dev/worker-a). Fix: remove"),
        ("load balancer", MINE, "is already a load balancer (busbar/dev/worker-a)"),
    ],
)
def test_a_host_changes_its_cluster_or_role_only_after_it_was_removed(
    box: Box, role: str, owner: dict[str, str], says: str
) -> None:
    claim(box, MINE, role)
    assert says in box.error("k3s-agent", "claim_host worker", **owner)


def test_the_mark_is_readable_for_root_only(box: Box) -> None:
    claim(box, MINE)
    assert (box.mode("state"), box.mode("state/owner")) == (0o700, 0o600)
    assert box.read("state/owner") == "role=worker\nowner=busbar/dev/worker-a\ninstall_id=1111\n"
