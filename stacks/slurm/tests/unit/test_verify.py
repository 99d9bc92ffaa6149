"""What `busbar verify` finds: on hosts by the core's script, and in what Slurm says of its nodes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.finding import Finding
from busbar.operations.verify import Verified, drift
from stacks.slurm.package import render, verify
from stacks.slurm.package.preflight import hosts_of
from stacks.slurm.tests.support import compute, slurm, stack_file
from tests.support.bash import output
from tests.support.cli import busbar

pytestmark = pytest.mark.usefixtures("stack_dev")

HEALTH = "busbar health: 7 of 8 GPUs"
RESUME = "scontrol update nodename=gpu-2 state=resume"
# The state of gpu-2, its reason and by whom, and the finding: host, kind, text and the beginning of its fix.
# Without one there is no difference.
STATES = yaml.safe_load(f"""
- [idle, "", root]
- [allocated, "", root]
- [maint, "", root]
- [reserved, "", root]
- [maint*, "", root, gpu-2, drift, its node is maint*, busbar up dev --converge gpu-2]
- [reserved*, "", root, gpu-2, drift, its node is reserved*, busbar up dev --converge gpu-2]
- [down*, Not responding, slurmctld, gpu-2, drift, "its node is down*: Not responding", busbar up dev]
- [null, "", root, gpu-2, drift, its node is not known to Slurm, busbar up dev --converge gpu-2]
- [drained, by hand, root, gpu-2, foreign, "its node is drained: by hand",
   "gpu-2: when the cause is repaired: {RESUME}"]
- [fail, by hand, root, gpu-2, foreign, "its node is fail: by hand",
   "gpu-2: when the cause is repaired: {RESUME}"]
- [failing, "", root, gpu-2, foreign, "its node is failing", "gpu-2: when the cause is repaired: {RESUME}"]
- [down, no power, root, gpu-2, foreign, "its node is down: no power",
   "gpu-2: when the cause is repaired: {RESUME}"]
- [down, reboot timed out, slurm, gpu-2, drift, "its node is down: reboot timed out", busbar up dev]
- [drained, "{HEALTH}", root, gpu-2, drained, "its node is drained: {HEALTH}",
   "gpu-2: when its repair is done, on gpu-2: /usr/local/lib/busbar/slurm-health && {RESUME}"]
- [drained, "busbar drain: new fan (me@ws)", root, gpu-2, drained,
   "its node is drained: busbar drain: new fan (me@ws)",
   "gpu-2: when its repair is done: busbar uncordon dev gpu-2"]
- [drained, gres/gpu count reported lower, slurmctld, gpu-2, drift,
   "its node is drained: gres/gpu count reported lower", busbar up dev --converge gpu-2]
- [drained, "busbar: removed", root, ctl, drift,
   "node gpu-2 is drained: busbar: removed, and not in the configuration", busbar up dev --converge ctl]
- [drained, "busbar: quarantine: RMA 7", root, ctl, drift,
   "node gpu-2 is drained: busbar: quarantine: RMA 7, and not in the configuration", busbar up dev]
""")


def found(
    state: str | None,
    reason: str = "",
    by: str = "root",
    *,
    quarantined: bool = False,
    completing: Any = None,
    **changes: Any,
) -> list[Finding]:
    """The differences where gpu-2 has this state."""
    made = slurm(hosts=compute({}, {"quarantine": "RMA 7"} if quarantined else {}), **changes)
    idle = {"state": "idle", "reason": "", "by": "root"}
    nodes: dict[str, Any] = {"gpu-1": idle, "gpu-2": {"state": state, "reason": reason, "by": by}}
    if state is None:
        nodes["gpu-2"] = None
    return [*verify.compare(made, verify.Nodes(nodes, completing or {}))]


@pytest.mark.parametrize(("state", "reason", "by", "finding"), [(*row[:3], row[3:]) for row in STATES])
def test_an_unusable_node_has_its_fix(state: str | None, reason: str, by: str, finding: list[str]) -> None:
    drifts = found(state, reason, by)
    if not finding:
        assert drifts == []
        return
    host, kind, what, fix = finding
    [one] = drifts
    assert (one.host, one.kind, one.what) == (host, kind, what)
    [said] = Verified([], drifts).fixes()
    assert said.startswith(fix)


def test_the_reasons_are_those_that_the_hosts_write() -> None:
    assert render.health(slurm(), hosts_of(slurm())[-1]).count(verify.HEALTH_REASON) == 1
    assert output("slurm/node", 'printf "$COMMAND_REASON"') == verify.COMMAND_REASON


def test_a_host_in_quarantine_is_drained_and_its_node_may_not_be_down() -> None:
    # Jobs of a reservation start on its nodes, and a registration ends DOWN.
    for state in ("idle", "maint", "reserved", "down"):
        [one] = found(state, "by hand", quarantined=True)
        assert (one.host, one.what) == ("ctl", "node gpu-2 is in quarantine and not drained")
    assert found("drained", "by hand", quarantined=True) == []
    assert [each.host for each in found("down*", "by hand", quarantined=True)] == ["gpu-2"]


def test_a_node_that_a_job_does_not_leave_is_named_with_the_step_that_ends_it() -> None:
    late = {"gpu-2": ("9", 130)}
    [one] = found("idle", completing=late)
    assert (one.host, one.kind) == ("gpu-2", "site")
    assert one.what == "job 9 has been completing for 130 s, expected at most 120 s"
    assert str(one.fix).startswith(
        "scontrol update nodename=gpu-2 state=down reason=completing, which also ends"
    )
    assert found("idle", completing={"gpu-2": ("9", 110)}) == []
    assert found("idle", completing=late, parameters={"UnkillableStepTimeout": "60"}) == []


def test_each_role_has_its_daemons_and_every_host_but_the_server_the_homes_mounted() -> None:
    made, mount = slurm(), r"srv-the\x2dhome.mount"
    with_homes = slurm(home={"nfs": {"folder": "/srv/the-home", "host": "login"}}, accounting={})
    assert [verify.units(made, host) for host in hosts_of(made)] == [
        ("slurmctld", "slurmdbd", "mariadb"), ("sackd",), ("slurmd",), ("slurmd",),
    ]  # fmt: skip
    assert [verify.units(with_homes, host) for host in hosts_of(with_homes)] == [
        ("slurmctld", mount), ("sackd",), ("slurmd", mount), ("slurmd", mount),
    ]  # fmt: skip
    assert output("slurm/member", "systemd-escape -p --suffix=mount /srv/the-home").strip() == mount


def test_the_core_s_script_asks_for_exactly_the_units_that_it_is_given() -> None:
    said = output(
        "verify",
        'systemctl() { [[ $1 == is-enabled ]]; }; DRIFT=""; ROLE=units UNITS="slurmctld slurmdbd"; '
        'verify_units; echo "$DRIFT"',
    )
    assert said.count("is not running") == 2 and "slurmctld is not running" in said


@pytest.mark.parametrize(("drifts", "code"), [([], 0), ([drift("gpu-1", "slurmd is down")], 1)])
def test_the_command_shows_every_host_with_its_role_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drifts: list[Finding], code: int
) -> None:
    async def verified(*_: object) -> list[Finding]:
        return drifts

    monkeypatch.setattr("stacks.slurm.package.verify.verify", verified)
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text(stack_file())
    monkeypatch.chdir(tmp_path)
    done = busbar("verify", str(path))
    assert done.exit_code == code, done.output
    rows = [line.strip().split(maxsplit=2) for line in done.output.splitlines()]
    assert ["ctl", "controller", "as applied"] in rows and ["login", "login", "as applied"] in rows
    assert ("Fix: busbar up dev --converge gpu-1" in done.output) is bool(drifts)
