"""`busbar measure` and `busbar history` on the lab's stack, beside an update and beside jobs of others."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from lab.topology import find
from tests.support.lab import PROJECT, SERVERS, Lab, gpu_holder, read_until

pytestmark = pytest.mark.drill

MARKED = "priorityclasses,mpijobs,configmaps,jobs,pods"
END_SECONDS = 120


class Site:
    """The lab's stack, as its admin uses it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def busbar(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = self.lab.run(sys.executable, "-m", "busbar", *words)
        print(done.stdout, done.stderr)
        return done

    def start_idle(self, stack: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "busbar", "measure", stack, "--idle"],
            env=self.lab.environment, cwd=PROJECT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def begin_training(self) -> float:
        """A user's job starts; after how many seconds its pod has a Node."""
        self.lab.apply(gpu_holder("worker-1"))
        began = time.monotonic()
        self.lab.kubectl("wait --for=condition=PodScheduled pod/training --timeout=60s")
        return time.monotonic() - began

    def runs(self) -> list[dict[str, Any]]:
        done = self.busbar("history", "dev", "--json")
        found: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
        return found

    @property
    def left(self) -> list[str]:
        return self.lab.kubectl(f"get {MARKED} -A -l busbar/nccl-run -o name").split()


@pytest.fixture
def site(lab: Lab) -> Iterator[Site]:
    made = Site(lab)
    yield made
    lab.kubectl("delete pod training --ignore-not-found")
    assert made.left == []


@pytest.fixture
def long_stack() -> Iterator[str]:
    """A stack of the same cluster whose measurement takes minutes."""
    name = "drill-measure"
    file, kept = PROJECT / f"Pulumi.{name}.yaml", PROJECT / ".busbar" / name
    stack = yaml.safe_load((PROJECT / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
    stack["config"]["busbar:cluster"]["validation"]["iterations"] = 2000
    file.write_text(yaml.safe_dump(stack), encoding="utf-8")
    kept.mkdir(parents=True)
    shutil.copy(PROJECT / ".busbar" / "dev" / "kubeconfig", kept)
    yield name
    file.unlink()
    shutil.rmtree(kept)


def test_a_stack_is_measured_again_and_its_outputs_stay(site: Site) -> None:
    outputs = site.lab.outputs()
    done = site.busbar("measure", "dev")
    assert done.returncode == 0
    assert done.stdout.startswith("PASS")
    assert site.lab.outputs() == outputs
    first, *_, last = site.runs()
    assert (first["kind"], last["kind"]) == ("update", "measure")
    assert last["result"]["nodes_measured"] == ["worker-1", "worker-2"]
    assert last["changes"] == [], "the same job as that of the update"


def test_an_idle_run_passes_and_leaves_its_record(site: Site) -> None:
    assert site.busbar("measure", "dev", "--idle").returncode == 0
    assert site.runs()[-1]["kind"] == "idle"


def test_without_the_load_balancer_the_api_is_reached_through_a_server(site: Site) -> None:
    before = len(site.runs())
    site.lab.ssh("lb-1", "systemctl stop haproxy")
    try:
        measured = site.busbar("measure", "dev")
        known = site.busbar("history", "dev")
        diagnosed = site.busbar("diagnose", "dev")
    finally:
        site.lab.ssh("lb-1", "systemctl start haproxy")
    server = next(line for line in measured.stderr.splitlines() if line.startswith("cluster "))
    assert (measured.returncode, known.returncode, diagnosed.returncode) == (0, 0, 0), server
    assert any(f"https://{find(name).address}:6443" in server for name in SERVERS), server
    assert "only what was measured from this folder" not in known.stderr, "the cluster's records are read"
    assert len(site.runs()) == before + 1


def test_an_idle_run_does_not_begin_on_less_than_two_idle_workers(site: Site) -> None:
    site.begin_training()
    done = site.busbar("measure", "dev", "--idle")
    assert done.returncode == 2
    assert "1 of 2 workers are idle, 2 are needed" in done.stderr
    assert "worker-1: 1 of 2 nvidia.com/gpu are free, held by default/training (1)" in done.stderr


def test_a_job_of_a_user_ends_an_idle_run_which_leaves_no_verdict(site: Site, long_stack: str) -> None:
    before = len(site.runs())
    process = site.start_idle(long_stack)
    read_until(process.stderr, "measuring all_reduce")
    print(f"the user's pod had a Node after {site.begin_training():.1f} s")
    _, rest = process.communicate(timeout=END_SECONDS)
    print(rest)
    assert process.returncode == 2
    assert "the measurement made room for other pods" in rest
    assert "fail: " not in rest, "its verdict is not told"
    assert len(site.runs()) == before
