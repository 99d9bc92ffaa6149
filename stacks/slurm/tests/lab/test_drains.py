"""Drains of others through quarantines and refused removals, and configurations that Slurm refuses."""

import json
from typing import Any

import pytest

from stacks.slurm.tests.lab.conftest import COMPUTE, CONTROLLER, Change, Site, unmeasured
from tests.support.lab import eventually

pytestmark = pytest.mark.drill

FOREIGN = "new fan"
OFF_SECONDS = 120
HEALTH = "/usr/local/lib/busbar/slurm-health"
GPUS = "/usr/local/lib/busbar-lab/gpus"


def changed(*changes: Change) -> Change:
    """The usual configuration, unmeasured, with these changes."""

    def made(slurm: dict[str, Any]) -> None:
        for change in (unmeasured, *changes):
            change(slurm)

    return made


def quarantined(slurm: dict[str, Any]) -> None:
    for host in slurm["hosts"]["compute"][1:]:
        host["quarantine"] = "ticket 17"


def one_node(slurm: dict[str, Any]) -> None:
    del slurm["hosts"]["compute"][1:]


def refusing(slurm: dict[str, Any]) -> None:
    slurm["removal"] = {"timeout_seconds": 10}


def soon_down(slurm: dict[str, Any]) -> None:
    slurm["parameters"] = {"SlurmdTimeout": "20"}


def both(site: Site, *, down: bool) -> bool:
    """True if compute-2 and compute-3 are down, as Slurm has noted, or drained again."""
    states = site.states()
    if not down:
        return {states[host] for host in COMPUTE[1:]} == {"drained"}
    return all("Not responding" in site.reason(host) for host in COMPUTE[1:])


def drained(site: Site, node: str, reason: str) -> bool:
    return site.states()[node].startswith("drained") and site.reason(node) == reason


def test_a_drain_of_an_admin_outlives_quarantine_release_and_a_refused_removal(site: Site) -> None:
    site.wait_idle()
    code, text = site.up(changed(soon_down))
    assert code == 0, text
    site.slurm(f"scontrol update nodename=compute-3 state=drain reason='{FOREIGN}'")
    job = ""
    try:
        code, text = site.up(changed(soon_down, quarantined))
        assert code == 0, text
        assert drained(site, "compute-2", "busbar: quarantine: ticket 17")
        assert drained(site, "compute-3", FOREIGN)

        # Both hosts are off for a while, and Slurm adds that to both reasons.
        for host in ("compute-2", "compute-3"):
            site.lab.ssh(host, "systemctl stop slurmd")
        eventually(lambda: both(site, down=True), OFF_SECONDS, "Slurm says that both are off")
        for host in ("compute-2", "compute-3"):
            site.lab.ssh(host, "systemctl start slurmd")
        eventually(lambda: both(site, down=False), OFF_SECONDS, "both are back")
        # The same as `busbar up --converge compute-3`.
        code, text = site.up(changed(soon_down), "--replace", "**::slurm-compute@compute-3")
        assert code == 0, text
        eventually(lambda: site.states()["compute-2"] == "idle", 60, "the quarantine has ended")
        assert drained(site, "compute-3", f"{FOREIGN} : Not responding")

        job = site.submit("sleep 900", "--nodelist=compute-2")
        eventually(lambda: site.states()["compute-2"] in ("mixed", "allocated"), 60, "the job runs")
        code, text = site.up(changed(soon_down, one_node, refusing))
        assert code != 0 and f"jobs {job} run on it; it stays" in text, text
        assert site.states()["compute-2"] in ("mixed", "allocated")
        assert drained(site, "compute-3", f"{FOREIGN} : Not responding")
    finally:
        if job:
            site.slurm(f"scancel {job}")
        site.slurm("scontrol update nodename=compute-3 state=resume")
    site.wait_idle()


def misspelt(slurm: dict[str, Any]) -> None:
    slurm["parameters"] = {"MaxJobCuont": "500"}


def without_its_plugin(slurm: dict[str, Any]) -> None:
    slurm["parameters"] = {"PriorityType": "priority/none-such"}


@pytest.mark.parametrize(
    ("changes", "said", "then"),
    [
        ((misspelt,), "unrecognized key: MaxJobCuont", ["--expect-no-changes"]),
        ((misspelt, one_node), "unrecognized key: MaxJobCuont", []),
        ((without_its_plugin, one_node), "failed to initialize priority plugin", []),
    ],
)
def test_a_refused_configuration_leaves_the_former_one_and_a_slurmctld_that_restarts(
    site: Site, changes: tuple[Change, ...], said: str, then: list[str]
) -> None:
    site.wait_idle()
    code, text = site.up(unmeasured)
    assert code == 0, text
    code, text = site.up(changed(*changes))
    assert code != 0 and said in text, text
    site.wait_idle()
    site.lab.ssh(CONTROLLER, "systemctl restart slurmctld")
    eventually(lambda: "is UP" in site.slurm("scontrol ping || true"), 60, "slurmctld answers")
    site.wait_idle()
    code, text = site.busbar("verify", "dev")
    assert code == 0, text
    code, text = site.up(unmeasured, *then)
    assert code == 0, text
    site.wait_idle()


def down(site: Site, node: str) -> tuple[bool, str]:
    """Whether a node is down, and its reason."""
    shown = site.slurm(f"scontrol --oneliner show node {node}")
    return " State=DOWN" in shown, site.reason(node)


def test_a_node_that_an_admin_has_set_down_is_so_after_restarts_by_an_update(site: Site) -> None:
    def other(slurm: dict[str, Any]) -> None:
        slurm["parameters"] = {"MaxJobCount": "5001"}

    site.wait_idle()
    code, text = site.up(unmeasured)
    assert code == 0, text
    site.slurm(f"scontrol update nodename=compute-3 state=down reason='{FOREIGN}'")
    job = site.submit("sleep 900", "--nodelist=compute-3")
    try:
        code, text = site.up(changed(other))
        assert code == 0 and f"compute-3 stays down: {FOREIGN}" in text, text
        assert down(site, "compute-3") == (True, FOREIGN)
        code, text = site.up(unmeasured)
        assert code == 0 and down(site, "compute-3") == (True, FOREIGN), text
        # The same holds for another key or package.
        site.lab.ssh("compute-3", "rm /var/lib/busbar/slurmd.started")
        code, text = site.up(unmeasured, "--replace", "**::slurm-compute@compute-3")
        assert code == 0 and f"compute-3 stays down: {FOREIGN}" in text, text
        assert down(site, "compute-3") == (True, FOREIGN)
        assert site.slurm(f"squeue -h -j {job} -o %T").strip() == "PENDING", "it never started"
    finally:
        site.slurm(f"scancel {job}; scontrol update nodename=compute-3 state=resume")
    site.wait_idle()


def test_a_drain_by_the_health_check_is_no_strangers_and_ends_only_where_the_check_passes(site: Site) -> None:
    resume = f"{HEALTH} && scontrol update nodename=compute-2 state=resume"
    site.wait_idle()
    site.lab.ssh("compute-2", f"rm /dev/nvidia1 && echo 1 > {GPUS}")
    try:
        # The second time the reason of the first is still there.
        for _ in range(2):
            site.lab.ssh("compute-2", f"! {HEALTH}")
            assert drained(site, "compute-2", "busbar health: 1 of 2 GPUs")
            code, text = site.busbar("verify", "dev", "--json")
            kinds = {each["host"]: each["kind"] for each in json.loads(text)["drift"]}
            assert (code, kinds) == (1, {"compute-2": "drained"}), text
            code, text = site.busbar("verify", "dev")
            assert f"on compute-2: {resume}" in " ".join(text.split()), text
            site.lab.ssh("compute-2", f"! {{ {resume}; }}")
            assert site.states()["compute-2"] == "drained"
            site.slurm("scontrol update nodename=compute-2 state=resume")
            eventually(site.all_idle, 60, "an admin has resumed it")
        site.lab.ssh("compute-2", f"! {HEALTH}")
    finally:
        site.lab.ssh("compute-2", f"mknod -m 0666 /dev/nvidia1 c 1 3 && echo 2 > {GPUS}")
    site.lab.ssh("compute-2", resume)
    site.wait_idle()
    assert site.states() == dict.fromkeys(COMPUTE, "idle")
