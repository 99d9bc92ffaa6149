"""A lost state is recovered from its copies on the servers, also in another folder with another backend."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.lab import PROJECT, SERVERS, Lab
from tests.support.own_stack import STACK_FILE, OwnStack

pytestmark = pytest.mark.drill

STARTED = "systemctl show -P ActiveEnterTimestampMonotonic"
JOBS = "get mpijobs -A -o jsonpath='{.items[*].metadata.uid}'"
COPIES = "/var/lib/busbar/state"


@pytest.fixture
def second(lab: Lab, tmp_path: Path) -> Iterator[OwnStack]:
    """The site on another laptop, after an update of the first one, without its folder and state."""
    lab.busbar("up", "dev", "--yes")
    (tmp_path / "state").mkdir()
    own = {"PULUMI_BACKEND_URL": f"file://{tmp_path}/state"}
    made = OwnStack(PROJECT, tmp_path / "project", {**lab.environment, **own})
    (made.folder / ".busbar").unlink()
    path = made.folder / STACK_FILE
    written = yaml.safe_load((PROJECT / STACK_FILE).read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({"config": written["config"]}), encoding="utf-8")
    yield made
    made.lose_state()


def recover(stack: OwnStack) -> None:
    done = stack.busbar("recover", "dev", "--yes")
    assert done.returncode == 0, done.stdout


def test_a_lost_state_is_imported_and_the_next_update_has_nothing_to_do(lab: Lab, tmp_path: Path) -> None:
    """The state and the folder of the stack are lost; nothing restarts, and nothing is measured."""
    lab.busbar("up", "dev", "--yes")
    before = [lab.ssh(server, f"{STARTED} k3s") for server in SERVERS], lab.kubectl(JOBS)
    folder = PROJECT / ".busbar/dev"
    folder.rename(tmp_path / "dev")
    removed = lab.pulumi("stack", "rm", "--yes", "--force", "--preserve-config", "--stack", "dev")
    assert removed.returncode == 0
    assert "on server-1, server-2, server-3" in lab.busbar("recover", "dev", "--yes")
    (tmp_path / "dev").rename(folder)
    assert lab.up("--expect-no-changes").returncode == 0
    assert before == ([lab.ssh(server, f"{STARTED} k3s") for server in SERVERS], lab.kubectl(JOBS))
    lab.busbar("verify", "dev")
    again = lab.run(sys.executable, "-m", "busbar", "recover", "dev", "--yes")
    assert (again.returncode, "only a lost one is recovered" in again.stdout + again.stderr) == (1, True)


def test_a_copy_from_before_a_worker_was_removed_leaves_that_host_alone(lab: Lab, second: OwnStack) -> None:
    recover(second)
    hosts = yaml.safe_load((second.folder / STACK_FILE).read_text())["config"]["busbar:cluster"]["hosts"]
    worker = hosts["workers"][-1]
    second.configure(lambda cluster: cluster["hosts"]["workers"].remove(worker))
    second.up()
    for server in SERVERS:
        lab.ssh(server, f"cd {COPIES} && rm $(ls | tail -n 1)")
    shutil.rmtree(second.folder / ".busbar")
    second.lose_state()
    recover(second)
    second.busbar("up", "dev", "--yes", "--refresh")
    assert second.busbar("verify", "dev").returncode == 0
    second.configure(lambda cluster: cluster["hosts"]["workers"].append(worker))
    second.up()
    assert second.busbar("verify", "dev").returncode == 0
