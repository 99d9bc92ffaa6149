"""The commands of the core on the lab's Slurm: what they show of its hosts, and drains by `busbar drain`."""

import json

import pytest

from stacks.slurm.tests.lab.conftest import COMPUTE, HOSTS, Site, unmeasured
from tests.support.lab import eventually

pytestmark = pytest.mark.drill

OFF_SECONDS = 60


def test_hosts_and_nodes_are_shown_with_what_is_wrong_on_them(site: Site) -> None:
    site.wait_idle()
    code, text = site.busbar("preflight", "dev")
    assert code == 0 and f"preflight passed on {len(HOSTS)} hosts" in text, text
    code, text = site.busbar("hosts", "keys", "dev")
    assert code == 0 and text.count(" pinned") == len(HOSTS), text
    code, text = site.busbar("nodes", "dev", "--json")
    found = json.loads(text)
    assert (code, found["well"]) == (0, True), text
    assert {each["name"]: each["node"] for each in found["nodes"]} == dict.fromkeys(COMPUTE, "idle")
    site.slurm("scontrol update nodename=compute-3 state=drain reason='new fan'")
    try:
        code, text = site.busbar("nodes", "dev", "--json")
        of_node = {each["name"]: each["node"] for each in json.loads(text)["nodes"]}
        assert (code, of_node["compute-3"]) == (1, "drained: new fan"), text
    finally:
        site.slurm("scontrol update nodename=compute-3 state=resume")
    site.wait_idle()


def test_a_measurement_of_two_nodes_is_in_the_history_beside_that_of_the_update(site: Site) -> None:
    site.wait_idle()
    code, text = site.busbar("measure", "dev", "--nodes", "compute-1,compute-2")
    assert code == 0, text
    code, text = site.busbar("history", "dev", "--json")
    last = json.loads(text)["runs"][-1]
    assert (code, last["kind"]) == (0, "measure"), text
    assert last["result"]["nodes_measured"] == ["compute-1", "compute-2"], text


def test_a_node_leaves_for_a_repair_and_comes_back_and_no_drain_of_others_is_ended(site: Site) -> None:
    site.wait_idle()
    site.slurm("scontrol update nodename=compute-3 state=drain reason='RMA 7'")
    job = site.submit("sleep 900", "--nodelist=compute-2")
    eventually(lambda: site.states()["compute-2"] in ("mixed", "allocated"), 60, "the job runs")
    try:
        code, text = site.busbar("drain", "dev", "compute-2", "--reason", "new fan", "--end-jobs")
        assert code == 0 and "busbar uncordon dev compute-2" in text, text
        assert site.states()["compute-2"] == "drained"
        assert site.reason("compute-2").startswith("busbar drain: new fan (")
        code, text = site.up(unmeasured)
        assert code == 0, text
        site.slurm("systemctl restart slurmctld")
        eventually(lambda: "is UP" in site.slurm("scontrol ping || true"), 60, "slurmctld answers")
        assert site.states()["compute-2"] == "drained"
        code, text = site.busbar("verify", "dev")
        assert code == 1 and "when its repair is done: busbar uncordon dev compute-2" in text, text

        code, text = site.busbar("drain", "dev", "compute-3", "--reason", "mine")
        assert code == 0 and "stays so: RMA 7" in text, text
        code, text = site.busbar("uncordon", "dev", "compute-3")
        assert code == 1 and "stays so: RMA 7" in text, text
        assert (site.states()["compute-3"], site.reason("compute-3")) == ("drained", "RMA 7")

        site.lab.ssh("compute-2", "systemctl stop slurmd")
        code, text = site.busbar("uncordon", "dev", "compute-2")
        assert code == 1 and "slurmd is not running; compute-2 stays drained" in text, text
        site.lab.ssh("compute-2", "systemctl start slurmd")
        code, text = site.busbar("uncordon", "dev", "compute-2")
        assert code == 0 and "compute-2 is back" in text, text
        eventually(lambda: site.states()["compute-2"] == "idle", OFF_SECONDS, "it starts jobs")
    finally:
        site.slurm(f"scancel {job}; scontrol update nodename=compute-3 state=resume")
        if site.states()["compute-2"] != "idle":
            site.slurm("scontrol update nodename=compute-2 state=resume")
    site.wait_idle()
