"""`busbar accept run` on the lab's cluster, while a machine becomes another one, and while a node reboots."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.accept.tests.lab.test_accept import RUN_SECONDS, Site
from stacks.accept.tests.lab.test_accept import site as site
from tests.lab.test_diagnose import fault_on
from tests.lab.test_under_load import rebooted
from tests.support.lab import PROJECT, read_until

pytestmark = pytest.mark.drill

ROWS = ("inventory.lab.nodes", "collectives.lab.nodes", "repeats.lab.log", "machines.")
OTHER = "0123456789abcdef0123456789abcdef"
# A node that has just booted offers no GPUs yet: the command then ends with 2, and is repeated.
TRIES = 5


@pytest.fixture(autouse=True)
def few_rows(site: Site) -> None:
    found = yaml.safe_load(site.criteria.read_text())
    found["rows"] = [row for row in found["rows"] if row["id"].startswith(ROWS)]
    site.criteria.write_text(yaml.safe_dump(found))


def rows(site: Site) -> dict[str, Any]:
    found = json.loads((site.folders()[-1] / "acceptance.json").read_text())["rows"]
    return {row["id"]: row for row in found}


def test_a_machine_that_becomes_another_one_in_a_run_is_named_and_not_accepted(site: Site) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "busbar", "accept", *site.words],
        env=site.lab.environment, cwd=PROJECT, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    read_until(process.stderr, "measuring alltoall")
    change = f"cp /etc/machine-id /run/machine-id.kept && echo {OTHER} >/etc/machine-id"
    with fault_on(site.lab, "worker-2", change, "cat /run/machine-id.kept >/etc/machine-id"):
        print(*process.communicate(timeout=RUN_SECONDS))
    found = rows(site)
    assert process.returncode == 1
    assert found["machines.lab.same"]["result"] == "fail"
    assert "worker-2 is another machine since stage repeats" in found["machines.lab.same"]["reason"]
    assert found["inventory.lab.nodes"]["result"] == "pass"
    for row in ("collectives.lab.nodes", "repeats.lab.log"):
        assert (found[row]["result"], "worker-2" in found[row]["reason"]) == ("unknown", True)
    again = site.accept("verify", str(site.folders()[-1]))
    assert (again.returncode, "worker-2 is another machine" in " ".join(again.stdout.split())) == (1, True)


def test_a_node_that_reboots_in_a_run_is_named_and_accepted(site: Site, tmp_path: Path) -> None:
    site.kill_at("stage repeats")
    with rebooted(site.lab, "worker-2"):
        pass
    site.lab.kubectl("wait --for=condition=Ready node/worker-2 --timeout=180s")
    for _ in range(TRIES):
        if (done := site.run()).returncode != 2:
            break
    assert done.returncode == 0
    same = rows(site)["machines.lab.same"]
    assert (same["result"], "rebooted: worker-2 before stage repeats" in same["reason"]) == ("pass", True)
