"""What `busbar verify` finds: on hosts by the core's script, and in what Slurm says of its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.finding import Finding
from busbar.operations.verify import Verified, drift
from stacks.slurm.package import render, verify
from stacks.slurm.package.config import KEY, PROJECT
from stacks.slurm.package.preflight import hosts_of
from stacks.slurm.tests.support import compute, configured, slurm
from tests.support.cli import busbar
from tests.unit.hosts.bash import output

IDLE = {"state": "idle", "reason": "", "by": "root"}
DRAINED = {"state": "drained", "reason": "by hand", "by": "root"}


def found(
    *, quarantined: bool = False, completing: Any = None, parameters: Any = None, **nodes: Any
) -> list[Finding]:
    hosts = compute({"quarantine": "RMA 7"} if quarantined else {}, {})
    made = slurm(hosts=hosts, parameters=parameters or {})
    known = {"gpu-1": IDLE, "gpu-2": IDLE, **{k.replace("_", "-"): v for k, v in nodes.items()}}
    return [*verify.compare(made, verify.Nodes(known, completing or {}))]


def test_nodes_that_start_jobs_are_as_applied() -> None:
    assert found() == [] and found(gpu_1={**IDLE, "state": "allocated"}) == []


@pytest.mark.parametrize("state", ["maint", "reserved"])
def test_a_reservation_is_no_difference_unless_its_node_does_not_respond(state: str) -> None:
    assert found(gpu_2={**IDLE, "state": state}) == []
    assert [each.host for each in found(gpu_2={**IDLE, "state": f"{state}*"})] == ["gpu-2"]


def test_a_drain_is_somebody_s_and_its_command_is_named() -> None:
    [one] = found(gpu_2=DRAINED)
    assert (one.host, one.kind) == ("gpu-2", "foreign")
    fix = "when the cause is repaired: scontrol update nodename=gpu-2 state=resume"
    assert (one.what, one.fix) == ("its node is drained: by hand", fix)


def test_a_drain_by_the_health_check_is_ended_where_it_passes() -> None:
    [one] = drifts = found(gpu_2={**DRAINED, "reason": "busbar health: 7 of 8 GPUs"})
    assert (one.host, one.kind) == ("gpu-2", "drained")
    assert one.what == "its node is drained: busbar health: 7 of 8 GPUs"
    [fix] = Verified([], drifts).fixes("dev")
    assert fix == (
        "gpu-2: when its repair is done, on gpu-2: /usr/local/lib/busbar/slurm-health && scontrol update "
        "nodename=gpu-2 state=resume"
    )
    assert render.health(slurm(), hosts_of(slurm())[-1]).count(verify.HEALTH_REASON) == 1


def test_a_drain_by_the_command_is_ended_by_the_command() -> None:
    [one] = drifts = found(gpu_2={**DRAINED, "reason": "busbar drain: new fan (me@ws)"})
    assert (one.host, one.kind) == ("gpu-2", "drained")
    assert [*Verified([], drifts).fixes("dev")] == [
        "gpu-2: when its repair is done: busbar uncordon dev gpu-2"
    ]
    assert output("slurm/node", 'printf "$COMMAND_REASON"') == verify.COMMAND_REASON


def test_a_drain_by_slurm_itself_is_ended_by_an_update() -> None:
    [one] = found(gpu_2={**DRAINED, "reason": "gres/gpu count reported lower", "by": "slurmctld"})
    assert (one.host, one.kind) == ("gpu-2", "drift")
    assert "resume" not in one.what


@pytest.mark.parametrize("reason", ["busbar: removed", "busbar: quarantine: RMA 7"])
def test_what_an_update_left_drained_is_a_difference_of_the_controller(reason: str) -> None:
    [one] = found(gpu_2={**DRAINED, "reason": reason})
    assert (one.host, one.kind) == ("ctl", "drift")
    assert one.what == f"node gpu-2 is drained: {reason}, and not in the configuration"


def test_a_host_in_quarantine_whose_node_starts_jobs_is_a_difference_of_the_controller() -> None:
    [one] = found(quarantined=True)
    assert (one.host, one.what) == ("ctl", "node gpu-1 is in quarantine and not drained")


def test_a_drain_of_a_host_in_quarantine_is_expected_and_its_end_is_not() -> None:
    assert found(quarantined=True, gpu_1=DRAINED) == []
    assert [each.host for each in found(quarantined=True, gpu_1={**DRAINED, "state": "down*"})] == ["gpu-1"]


def test_a_node_that_a_job_does_not_leave_is_named_with_the_step_that_ends_it() -> None:
    late = {"gpu-2": ("9", 130)}
    [one] = found(completing=late)
    assert (one.host, one.kind) == ("gpu-2", "site")
    assert one.what == "job 9 has been completing for 130 s, expected at most 120 s"
    assert str(one.fix).startswith(
        "scontrol update nodename=gpu-2 state=down reason=completing, which also ends"
    )
    assert found(completing={"gpu-2": ("9", 110)}) == []
    assert found(completing=late, parameters={"UnkillableStepTimeout": "60"}) == []


def test_a_node_that_is_down_or_not_known_differs() -> None:
    [down] = found(gpu_1={"state": "down*", "reason": "Not responding", "by": "slurmctld"})
    assert (down.what, down.kind) == ("its node is down*: Not responding", "drift")
    [unknown] = found(gpu_1=None)
    assert unknown.what == "its node is not known to Slurm"


def test_every_host_but_the_server_has_the_homes_mounted() -> None:
    made = slurm(home={"nfs": {"folder": "/srv/the-home", "host": "login"}}, accounting={})
    mount = r"srv-the\x2dhome.mount"
    assert [verify.units(made, host) for host in hosts_of(made)] == [
        ("slurmctld", mount), ("sackd",), ("slurmd", mount), ("slurmd", mount),
    ]  # fmt: skip
    assert output("slurm/member", "systemd-escape -p --suffix=mount /srv/the-home").strip() == mount


def test_each_role_has_its_daemons() -> None:
    made = slurm()
    assert [verify.units(made, host) for host in hosts_of(made)] == [
        ("slurmctld", "slurmdbd", "mariadb"), ("sackd",), ("slurmd",), ("slurmd",),
    ]  # fmt: skip
    assert verify.units(slurm(accounting={}), hosts_of(made)[0]) == ("slurmctld",)


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
    path.write_text(yaml.safe_dump({"config": {f"{PROJECT}:{KEY}": configured()}}))
    done = busbar("verify", str(path))
    assert done.exit_code == code, done.output
    rows = [line.strip().split(maxsplit=2) for line in done.output.splitlines()]
    assert ["ctl", "controller", "as applied"] in rows and ["login", "login", "as applied"] in rows
    assert ("Fix: busbar up dev --converge gpu-1" in done.output) is bool(drifts)
