"""A cluster whose state is lost is adopted on another machine: another folder, backend and passphrase."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.lab import PROJECT, SERVERS, Lab
from tests.support.own_stack import STACK_FILE, OwnStack

pytestmark = pytest.mark.drill

STARTED = "systemctl show -P ActiveEnterTimestampMonotonic"
JOBS = "get mpijobs -A -o jsonpath='{.items[*].metadata.uid}'"


@pytest.fixture
def second(lab: Lab, tmp_path: Path) -> Iterator[OwnStack]:
    (tmp_path / "state").mkdir()
    own = {"PULUMI_BACKEND_URL": f"file://{tmp_path}/state", "PULUMI_CONFIG_PASSPHRASE": "another"}
    made = OwnStack(PROJECT, tmp_path / "project", {**lab.environment, **own})
    (made.folder / ".busbar").unlink()
    path = made.folder / STACK_FILE
    written = yaml.safe_load((PROJECT / STACK_FILE).read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({"config": written["config"]}), encoding="utf-8")
    yield made
    made.lose_state()


def adopt(stack: OwnStack) -> str:
    done = stack.busbar("adopt", "dev")
    print(done.stdout)
    assert done.returncode == 0
    return str(done.stdout)


def as_applied(stack: OwnStack) -> subprocess.CompletedProcess[str]:
    done = stack.busbar("verify", "dev")
    print(done.stdout)
    return done


def test_a_lost_state_is_adopted_and_nothing_changes_and_a_worker_that_is_new_joins(
    lab: Lab, second: OwnStack
) -> None:
    before = [lab.ssh(server, f"{STARTED} k3s") for server in SERVERS], lab.kubectl(JOBS)
    assert "differs" not in adopt(second)
    assert second.no_changes()
    assert as_applied(second).returncode == 0
    assert before == ([lab.ssh(server, f"{STARTED} k3s") for server in SERVERS], lab.kubectl(JOBS))
    again = second.busbar("adopt", "dev")
    assert (again.returncode, "only a lost state is adopted" in again.stdout) == (1, True)

    [*_, worker] = yaml.safe_load((second.folder / STACK_FILE).read_text())["config"]["busbar:cluster"][
        "hosts"
    ]["workers"]
    second.configure(lambda cluster: cluster["hosts"]["workers"].remove(worker))
    second.up()
    second.lose_state()
    second.configure(lambda cluster: cluster["hosts"]["workers"].append(worker))
    assert f"differs  busbar-worker@{worker['name']}: it is not installed" in adopt(second)
    second.up()
    assert as_applied(second).returncode == 0
