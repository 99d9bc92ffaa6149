"""`busbar accept run --soak` on the lab's cluster, in seconds: a healthy one, and with faults under load.

The bandwidth is injected (simulated), because TCP on a shared machine wavers more than a fabric.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.hosts import nspawn
from lab.topology import find
from tests.support.lab import PROJECT, Lab, read_until

pytestmark = pytest.mark.drill

NAME, WORKERS, HCAS = "drill-soak", ("worker-1", "worker-2"), ("mlx5_1", "mlx5_3")
# Seconds of load of an interval, of all intervals, and between samples; all else is as on a real cluster.
INTERVAL, LOAD, SAMPLE, RUN_SECONDS = 0.5, 6.5, 2, 420
FAST = f"""\
from stacks.accept.package import soak
from stacks.accept.package.stages import soak as stage
soak.INTERVAL_SECONDS, soak.SAMPLE_SECONDS, stage.RUN_SECONDS = {INTERVAL}, {SAMPLE}, 8
stage.hours_of = lambda text: {LOAD} / 3600
from busbar.cli import main
main()"""
RAILS, GBPS = "/usr/local/lib/busbar-lab/rails", 0.5
PORT = "/sys/class/infiniband/mlx5_1/ports/1/counters"
# systemd makes one $ of two.
UNDER_LOAD = f"""\
systemd-run --quiet --unit drill-symbols bash -c 'n=0; while sleep 1; do
  ! pgrep -f all_reduce_perf >/dev/null || echo $$((n += 90)) >{PORT}/symbol_error
done'"""


class Site:
    """A stack of the lab's cluster, and criteria with the rows of the soak."""

    def __init__(self, lab: Lab, criteria: Path) -> None:
        self.lab, self.criteria = lab, criteria
        self.home = PROJECT / ".busbar" / NAME / "acceptance"

    def words(self, *more: str) -> list[str]:
        return [sys.executable, "-c", FAST, "accept", *more]

    def start(self) -> subprocess.Popen[str]:
        words = self.words("run", NAME, "--soak", "1h", "--criteria", str(self.criteria))
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(words, env=self.lab.environment, cwd=PROJECT, text=True, **pipes)

    def end(self, process: subprocess.Popen[str]) -> int:
        out, err = process.communicate(timeout=RUN_SECONDS)
        print(out, err)
        return process.returncode

    def rows(self) -> dict[str, tuple[str, str]]:
        """Row -> result and reason, of the last document."""
        folder = max(path for path in self.home.iterdir() if path.is_dir() and path.name != "unfinished")
        found = json.loads((folder / "acceptance.json").read_text())["rows"]
        rows = {row["id"].removeprefix("soak.lab."): (row["result"], row["reason"]) for row in found}
        print(json.dumps(rows, indent=1))
        return rows

    def bandwidth(self, gbps: float) -> None:
        for worker in WORKERS:
            files = " ".join(f"{RAILS}/{hca}/busbw" for hca in HCAS)
            self.lab.ssh(worker, f"echo {gbps} 0.002 | tee {files}")


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    file, kept = PROJECT / f"Pulumi.{NAME}.yaml", PROJECT / ".busbar" / NAME
    stack = yaml.safe_load((PROJECT / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
    stack["config"]["busbar:cluster"]["validation"].update(min_bytes="1M", max_bytes="1M")
    file.write_text(yaml.safe_dump(stack), encoding="utf-8")
    kept.mkdir(parents=True)
    shutil.copy(PROJECT / ".busbar" / "dev" / "kubeconfig", kept)
    made = Site(lab, tmp_path_factory.mktemp("criteria") / "acceptance.yaml")
    words = made.words("criteria", "--for", NAME, "--soak", "1h")
    done = lab.run(*words)
    assert done.returncode == 0, done.stderr
    rows = yaml.safe_load(done.stdout)
    wanted = ("soak.", "inventory.lab.nodes", "collectives.lab.nodes")
    rows["rows"] = [row for row in rows["rows"] if row["id"].startswith(wanted)]
    made.criteria.write_text(yaml.safe_dump(rows))
    made.bandwidth(GBPS)
    yield made
    assert lab.kubectl("get mpijobs,configmaps -A -l busbar/nccl-run -o name") == ""
    for worker in WORKERS:
        left = lab.ssh(
            worker, "ls -d /var/lib/busbar-soak; systemctl list-units --no-legend 'busbar-accept*'; true"
        )
        assert left == "", f"{worker}: {left}"
        lab.ssh(worker, f"rm -f {RAILS}/*/busbw")
    file.unlink()
    shutil.rmtree(kept)


def test_a_healthy_soak_that_was_killed_is_continued_by_the_next_call_and_passes(site: Site) -> None:
    killed = site.start()
    read_until(killed.stderr, "out of place")
    read_until(killed.stderr, "following the log of")
    read_until(killed.stderr, "out of place")
    killed.kill()
    killed.communicate(timeout=10)
    job = site.lab.kubectl("get mpijobs -A -l busbar/nccl-run -o name")
    assert job
    kubeconfig = str(PROJECT / ".busbar" / NAME / "kubeconfig")
    clean = site.lab.run(sys.executable, "-m", "busbar", "nccl", "clean", "--kubeconfig", kubeconfig)
    assert "it goes on without a process" in clean.stderr
    assert site.lab.kubectl("get mpijobs -A -l busbar/nccl-run -o name") == job
    code = site.end(site.start())
    rows = site.rows()
    bad = {row: found for row, found in rows.items() if found[0] != "pass"}
    assert (code, bad) == (0, {})


def test_a_port_that_counts_errors_under_load_and_a_link_that_flaps_once_are_named(site: Site) -> None:
    site.lab.ssh("worker-2", UNDER_LOAD)
    try:
        process = site.start()
        read_until(process.stderr, "stage soak")
        for _ in range(3):
            read_until(process.stderr, "out of place")
        site.lab.ssh("worker-1", f"echo 1 >{PORT}/link_downed")
        code = site.end(process)
    finally:
        site.lab.ssh("worker-2", f"systemctl stop drill-symbols; echo 0 >{PORT}/symbol_error")
        site.lab.ssh("worker-1", f"echo 0 >{PORT}/link_downed")
    rows = site.rows()
    assert code == 1
    assert rows["counters"][0] == "fail" and "worker-2: symbol_error of mlx5_1" in rows["counters"][1]
    assert rows["links"][0] == "fail" and "worker-1: link_downed of mlx5_1" in rows["links"][1]
    assert {row for row, found in rows.items() if found[0] != "pass"} == {"counters", "links"}


def test_a_wobble_of_5_percent_is_named(site: Site) -> None:
    process = site.start()
    read_until(process.stderr, "stage soak")
    for gbps, intervals in ((GBPS, 5), (0.94 * GBPS, 4)):
        site.bandwidth(gbps)
        for _ in range(intervals):
            read_until(process.stderr, "out of place")
    site.bandwidth(GBPS)
    code = site.end(process)
    rows = site.rows()
    assert (code, rows["wobble"][0]) == (1, "fail")


def test_a_node_that_dies_ends_the_soak_and_is_named(site: Site) -> None:
    process = site.start()
    read_until(process.stderr, "stage soak")
    for _ in range(3):
        read_until(process.stderr, "out of place")
    # With the launcher its log would be gone too, and the load unknown.
    role = "training.kubeflow.org/job-role=launcher"
    on = site.lab.kubectl(f"get pods -A -l {role} -o 'jsonpath={{.items[*].spec.nodeName}}'")
    [dead] = set(WORKERS) - {on}
    nspawn.stop(nspawn.folder(find(dead)))
    try:
        code = site.end(process)
    finally:
        site.lab.boot()
    rows = site.rows()
    assert code == 1
    assert f"no samples of {dead}" in rows["hours"][1]
    assert rows["load"] == ("fail", rows["load"][1]) and "exit code" in rows["load"][1]
    site.lab.ssh(dead, "rm -rf /var/lib/busbar-soak")
