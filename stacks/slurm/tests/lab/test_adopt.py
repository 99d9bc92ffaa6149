"""A Slurm cluster whose state is lost: `busbar adopt` writes it anew, and nothing on the hosts changes."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.slurm.tests.lab.conftest import COMPUTE, CONTROLLER, SLURM, Site, unmeasured

pytestmark = pytest.mark.drill

STARTED = "systemctl show -P ActiveEnterTimestampMonotonic"
LAST = COMPUTE[-1]


def lose_state(site: Site) -> None:
    done = site.lab.pulumi(
        "stack", "rm", "--yes", "--force", "--preserve-config", "--stack", "dev", cwd=SLURM
    )
    assert done.returncode == 0, done.stderr


def without_last(slurm: dict[str, Any]) -> None:
    unmeasured(slurm)
    slurm["hosts"]["compute"] = [each for each in slurm["hosts"]["compute"] if each["name"] != LAST]


def test_a_lost_state_is_adopted_and_nothing_changes_and_a_node_that_is_new_joins(site: Site) -> None:
    site.wait_idle()
    before = site.slurm(f"{STARTED} slurmctld"), site.slurm(f"{STARTED} slurmd", COMPUTE[0])
    lose_state(site)
    code, text = site.busbar("adopt", "dev")
    print(text)
    assert (code, "differs" in text) == (0, False)
    code, text = site.up(None, "--expect-no-changes")
    assert code == 0, text
    code, text = site.busbar("verify", "dev")
    assert code == 0, text
    assert before == (site.slurm(f"{STARTED} slurmctld"), site.slurm(f"{STARTED} slurmd", COMPUTE[0]))
    code, text = site.up(without_last)
    assert (code, LAST in site.slurm("sinfo -h -N -o %N")) == (0, False), text
    lose_state(site)
    code, text = site.busbar("adopt", "dev")
    print(text)
    assert (code, f"differs  compute-{LAST}: it is not installed" in text) == (0, True)
    code, text = site.up()
    assert (code, LAST in site.slurm("sinfo -h -N -o %N", CONTROLLER)) == (0, True), text
    code, text = site.busbar("verify", "dev")
    assert code == 0, text
