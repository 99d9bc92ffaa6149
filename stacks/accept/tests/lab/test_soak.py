"""`busbar accept run --soak` on the lab's cluster, in seconds: healthy, with faults under load, and after it.

The bandwidth is injected (simulated), because TCP on a shared machine wavers more than a fabric.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

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
from stacks.accept.package.subjects import soak
soak.INTERVAL_SECONDS, soak.SAMPLE_SECONDS, soak.RUN_SECONDS = {INTERVAL}, {SAMPLE}, 8
soak.hours_of = lambda text: {LOAD} / 3600
from busbar.cli.main import main
main()"""
Running: TypeAlias = subprocess.Popen[str]
Words: TypeAlias = tuple[str, ...]
RAILS, GBPS = "/usr/local/lib/busbar-lab/rails", 0.5
PORT = "/sys/class/infiniband/mlx5_1/ports/1/counters"
# systemd makes one $ of two.
UNDER_LOAD = f"""\
systemd-run --quiet --unit drill-symbols bash -c 'n=0; while sleep 1; do
  ! pgrep -f all_reduce_perf >/dev/null || echo $$((n += 90)) >{PORT}/symbol_error
done'"""


ROWS = ("soak.", "inventory.lab.nodes", "collectives.lab.nodes")
# A cluster that busbar did not make has the logins of an agent.
WITH_KEY = ("ssh-agent", "sh", "-c", f'ssh-add -q "{PROJECT}/.lab/ssh/id_ed25519" && exec "$@"', "sh")


class Site:
    """A stack of the lab's cluster, and criteria with some rows."""

    def __init__(self, lab: Lab, criteria: Path) -> None:
        self.lab, self.criteria = lab, criteria
        self.home = PROJECT / ".busbar" / NAME / "acceptance"
        self.kubeconfig = str(PROJECT / ".busbar" / NAME / "kubeconfig")

    def words(self, *more: str) -> list[str]:
        return [sys.executable, "-c", FAST, "accept", *more]

    def start(self, *rows: str, of: Words = ("--for", NAME), hosts: Words = (), login: Words = ()) -> Running:
        """Start a run with the rows that begin so. OF: the stack, or the options of another cluster."""
        soak = (*of, "--soak", "1h")
        done = self.lab.run(*self.words("criteria", *soak))
        assert done.returncode == 0, done.stderr
        found = yaml.safe_load(done.stdout)
        found["rows"] = [row for row in found["rows"] if row["id"].startswith(rows or ROWS)]
        self.criteria.write_text(yaml.safe_dump(found))
        words = [word for word in soak if word != "--for"]
        words = [*login, *self.words("run", *words, *hosts, "--criteria", str(self.criteria))]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(words, env=self.lab.environment, cwd=PROJECT, text=True, **pipes)

    def end(self, process: Running) -> int:
        out, err = process.communicate(timeout=RUN_SECONDS)
        print(out, err)
        return process.returncode

    def rows(self, home: Path | None = None) -> dict[str, tuple[str, str]]:
        """Row -> result and reason, of the last document."""
        folder = max((home or self.home).glob("2*/"))
        found = json.loads((folder / "acceptance.json").read_text())["rows"]
        rows = {re.sub(r"^soak\.\w+\.", "", row["id"]): (row["result"], row["reason"]) for row in found}
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
    stack["config"]["busbar:cluster"]["validation"].update(min_bytes="1M", max_bytes="1M", hcas=[*HCAS])
    file.write_text(yaml.safe_dump(stack), encoding="utf-8")
    kept.mkdir(parents=True)
    shutil.copy(PROJECT / ".busbar" / "dev" / "kubeconfig", kept)
    made = Site(lab, tmp_path_factory.mktemp("criteria") / "acceptance.yaml")
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
    clean = site.lab.run(sys.executable, "-m", "busbar", "nccl", "clean", "--kubeconfig", site.kubeconfig)
    assert clean.returncode == 1 and job.strip().rpartition("/")[2] in clean.stderr
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


def test_nodes_that_are_slower_after_the_soak_than_before_are_named(site: Site) -> None:
    process = site.start("soak.lab.hours", "rails.", "after.")
    read_until(process.stderr, "stage after")
    site.bandwidth(0.3 * GBPS)
    site.end(process)
    site.bandwidth(GBPS)
    rows = site.rows()
    # Two rails.
    assert rows["after.lab.nodes"][0] == "fail" and "pairs: 0.3 GB/s, 1 before" in rows["after.lab.nodes"][1]
    again = site.lab.run(*site.words("verify", str(max(site.home.glob("2*/")))))
    assert "differs" not in again.stdout


def test_a_list_of_hosts_gives_the_soak_of_a_cluster_of_a_kubeconfig_its_samples(
    site: Site, tmp_path: Path
) -> None:
    cluster = yaml.safe_load((PROJECT / f"Pulumi.{NAME}.yaml").read_text())["config"]["busbar:cluster"]
    workers = [{**each, "role": "worker"} for each in cluster["hosts"]["workers"]]
    (tmp_path / "hosts.json").write_text(json.dumps({"version": 1, "hosts": workers}))
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(cluster["validation"]))
    settings = ("--settings", str(tmp_path / "settings.yaml"), "--project", str(tmp_path))
    hosts = ("--hosts", str(tmp_path / "hosts.json"))
    of = ("--kubeconfig", site.kubeconfig, *settings)
    # Without HCAs nothing injects a bandwidth, which wavers then.
    rows = ("inventory.", *(f"soak.gpus.{row}" for row in ("load", "hours", "links", "gpus", "reboots")))
    code = site.end(site.start(*rows, of=of, hosts=hosts, login=WITH_KEY))
    [home] = tmp_path.glob(".busbar/*/acceptance")
    bad = {row: found for row, found in site.rows(home).items() if found[0] != "pass"}
    assert (code, bad) == (0, {})


def test_a_node_that_dies_ends_the_soak_and_is_named(site: Site) -> None:
    process = site.start()
    read_until(process.stderr, "stage soak")
    for _ in range(3):
        read_until(process.stderr, "out of place")
    # With the launcher its log would be gone too, and the load unknown. The last update has left one, too.
    role = "busbar/nccl-run,training.kubeflow.org/job-role=launcher"
    pods = json.loads(site.lab.kubectl(f"get pods -A -l {role} -o json"))["items"]
    [dead] = {*WORKERS} - {pod["spec"]["nodeName"] for pod in pods}
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
