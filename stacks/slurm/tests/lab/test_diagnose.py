"""`busbar diagnose` on the lab's Slurm, of which one host has a slow link: it names this host and no other.

Slurm, its steps and Open MPI are the real ones. Three hosts have no peers enough for more than that.
"""

import json
from typing import Any

import pytest

from stacks.slurm.tests.lab.conftest import COMPUTE, CONTROLLER, Site
from tests.support.lab import PROJECT, eventually

pytestmark = pytest.mark.drill

DEVICE = "$(ip -o route get 10.77.0.131 | grep -o 'dev [^ ]*' | cut -d' ' -f2)"
SLOW_LINK = f"tc qdisc add dev {DEVICE} root tbf rate 80mbit burst 64kb latency 50ms"


def one_rail_group(slurm: dict[str, Any]) -> None:
    """What can be compared: all pairs are of one kind. The file is in another folder."""
    slurm["ssh"]["key_file"] = str(PROJECT / ".lab" / "ssh" / "id_ed25519")
    slurm["validation"] |= {"max_bytes": "4M", "expected_busbw_gbps": 0.05, "expected_by_collective": {}}
    for host in slurm["hosts"]["compute"]:
        host["topology"] = {"rail_group": "leaf-1"}


@pytest.fixture
def stack(site: Site) -> str:
    """The file of the stack that is diagnosed."""
    site.wait_idle()
    path = str(site.changed(one_rail_group))
    site.changes.clear()  # nothing is updated
    return path


def diagnose(site: Site, stack: str) -> tuple[int, dict[str, Any]]:
    code, text = site.busbar("diagnose", stack, "--json")
    print(text)
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text[text.index("{\n") :])[0]
    return code, found


def test_a_host_with_a_slow_link_is_named_and_no_other(site: Site, stack: str) -> None:
    site.lab.ssh("compute-2", SLOW_LINK)
    try:
        code, found = diagnose(site, stack)
    finally:
        site.lab.ssh("compute-2", f"tc qdisc del dev {DEVICE} root")
    assert [(row["cause"], row["nodes"]) for row in found["rows"]] == [("node", ["compute-2"])]
    assert (code, sorted(found["healthy"])) == (1, ["compute-1", "compute-3"])
    assert site.slurm("squeue -h").strip() == ""


def test_a_job_of_a_user_is_waited_for_and_runs_on(site: Site, stack: str) -> None:
    job = site.submit("sleep 600", f"--nodelist={COMPUTE[2]}")
    try:
        eventually(lambda: site.states()[COMPUTE[2]] in ("mixed", "allocated"), 60, "the job runs")
        code, found = diagnose(site, stack)
        assert (code, found["rows"]) == (2, []) and "is pending: Resources" in found["stopped"], found
        assert site.slurm("squeue -h -o '%i %T'", CONTROLLER).strip() == f"{job} RUNNING"
    finally:
        site.slurm(f"scancel {job}")
    site.wait_idle()
