"""Machines that are gone stop nothing, and are named."""

import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.hosts import nspawn
from lab.topology import hosts
from tests.support.lab import Lab

pytestmark = pytest.mark.drill

LEFT = "ls -d /var/lib/busbar /usr/local/bin/k3s /etc/rancher/k3s 2>/dev/null || true"


def _switch_off(name: str) -> None:
    """The machine is gone: with its disk, at once."""
    [host] = [each for each in hosts() if each.name == name]
    nspawn.stop(nspawn.folder(host))


def _nodes(lab: Lab) -> set[str]:
    found = json.loads(lab.kubectl("get nodes -o json"))["items"]
    return {each["metadata"]["name"] for each in found}


def _uncleaned(lab: Lab) -> list[str]:
    """The machines that `busbar status` still names; not those that were installed again since."""
    shown = lab.run(sys.executable, "-m", "busbar", "status", "dev").stdout
    return re.findall(r"could not be cleaned: (\S+) \(", shown)


def _up(lab: Lab, what: str, change: Any, *arguments: str) -> tuple[int, str]:
    """An update without the measurement: its exit code and output; prints how long it took."""

    def and_unmeasured(cluster: dict[str, Any]) -> None:
        cluster["validation"]["enabled"] = False
        change(cluster)

    began = time.monotonic()
    done = lab.up("--config-file", str(lab.config_with(and_unmeasured)), *arguments)
    print(f"{what}: {time.monotonic() - began:.0f} s")
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def usual_hosts(lab: Lab) -> Iterator[None]:
    """New machines for those that are gone, and the usual configuration, afterwards."""
    yield
    lab.boot()
    lab.updated()


@pytest.mark.usefixtures("usual_hosts")
def test_a_worker_that_is_gone_for_good_is_taken_out_and_the_update_goes_on(lab: Lab) -> None:
    _switch_off("worker-2")

    def without_worker_2(cluster: dict[str, Any]) -> None:
        del cluster["hosts"]["workers"][1]

    code, text = _up(lab, "a lost worker taken out", without_worker_2)
    assert code == 0, text
    assert "could not be cleaned: worker-2: connection to" in text, text
    assert _nodes(lab) == {"server-1", "server-2", "server-3", "worker-1"}
    assert _uncleaned(lab) == ["worker-2"]


@pytest.mark.usefixtures("usual_hosts")
def test_an_update_with_a_dead_worker_changes_the_others_and_another_machine_is_converged(lab: Lab) -> None:
    _switch_off("worker-2")

    def label(cluster: dict[str, Any]) -> None:
        cluster["pools"]["lab"]["labels"] = {"drill": "dead-worker"}

    code, text = _up(lab, "a change with a dead worker", label, "--continue-on-error")
    assert code != 0
    assert "worker-2" in text and "left out of this update" in text, text
    labels = json.loads(lab.kubectl("get node worker-1 -o json"))["metadata"]["labels"]
    assert labels.get("drill") == "dead-worker", text

    before = lab.uids("nodes")["worker-2"]
    lab.boot()
    verified = lab.run(sys.executable, "-m", "busbar", "verify", "dev").stdout
    assert "nothing of busbar is installed" in verified and "--converge" in verified
    began = time.monotonic()
    lab.busbar("up", "dev", "--yes", "--skip-preview", "--converge", "worker-2")
    print(f"another machine converged: {time.monotonic() - began:.0f} s")
    assert lab.uids("nodes")["worker-2"] != before
    assert lab.conditions("worker-2")["Ready"] == "True"


@pytest.mark.usefixtures("usual_hosts")
def test_a_lost_server_leaves_etcd_when_it_is_taken_out_together_with_a_living_one(lab: Lab) -> None:
    _switch_off("server-3")

    def one_server(cluster: dict[str, Any]) -> None:
        del cluster["hosts"]["servers"][1:]

    code, text = _up(lab, "a lost and a living server taken out", one_server)
    assert code == 0, text
    assert _nodes(lab) == {"server-1", "worker-1", "worker-2"}
    assert lab.ssh("server-2", LEFT) == ""
    assert _uncleaned(lab) == ["server-3"]
