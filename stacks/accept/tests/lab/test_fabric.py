"""`busbar accept` on four workers: the cabling of a fabric, shared storage, and the stress of each node.

ibnetdiscover, opensm and fio are the real ones. ibsim simulates the fabric, with the GUIDs of the workers'
HCAs, and dcgmi is simulated.
"""

import base64
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.hosts import keys, nspawn
from lab.topology import find
from stacks.accept.tests.lab import packages
from stacks.accept.tests.net import Net
from stacks.accept.tests.unit import made
from tests.support.lab import PROJECT, UP_SECONDS, Lab
from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.drill

WORKERS = ("worker-1", "worker-2", "worker-3", "worker-4")
RAILS = ("mlx5_1", "mlx5_3")
GPUS = 2
SHARED, FOLDER, MOUNTED = nspawn.SHARED / "accept", "/mnt/shared/accept", "/srv/data"
TOOLS = f"{FOLDER}/tools"
OWN = f"{TOOLS}/usr/lib/x86_64-linux-gnu"
LIBRARIES = f"export LD_LIBRARY_PATH={OWN}:{OWN}/ceph:{TOOLS}/lib/x86_64-linux-gnu"
ON_IBSIM = f"export SIM_HOST=$(cat {FOLDER}/at) LD_PRELOAD={OWN}/umad2sim/libumad2sim.so"
FIO = f"""\
#!/bin/bash
{LIBRARIES}
exec {TOOLS}/usr/bin/fio "$@"
"""
# On the first worker it talks to ibsim. The others have no fabric, as VMs have none.
IBNETDISCOVER = f"""\
#!/bin/bash
{LIBRARIES}
if [[ $* == --version ]]; then
  echo "$({TOOLS}/usr/sbin/ibnetdiscover --version 2>&1) on ibsim (a simulator of the fabric)"
  exit 0
fi
[[ -e /run/drill-refuses ]] || {ON_IBSIM}
exec {TOOLS}/usr/sbin/ibnetdiscover "$@"
"""
# opensm brings the links up. ibsim needs a moment until it answers.
START = f"""\
systemctl stop drill-ibsim 2>/dev/null || true
{LIBRARIES}
systemd-run --quiet --collect --unit drill-ibsim -E LD_LIBRARY_PATH {TOOLS}/usr/bin/ibsim -s -n {FOLDER}/net
{ON_IBSIM} OSM_TMP_DIR=/run OSM_CACHE_DIR=/run
for try in $(seq 20); do
  timeout 20 {TOOLS}/usr/sbin/opensm -o -f /run/osm.log >/dev/null 2>&1 && exit 0
  sleep 0.5
done
tail -n 20 /run/osm.log >&2
exit 1
"""


def write(lab: Lab, host: str, path: str, text: str) -> None:
    encoded = base64.b64encode(text.encode()).decode()
    lab.ssh(host, f"echo {encoded} | base64 -d >{path}; chmod +x {path}")


class Site:
    """A stack with four workers, and the fabric that the first of them sees."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.temporary = lab, folder
        self.stack = OwnStack(PROJECT, folder / "project", lab.environment)
        self.home = PROJECT / ".busbar/dev/acceptance"

    def prepare(self) -> None:
        """Install the tools on the workers, and cable the fabric."""
        SHARED.mkdir()
        (SHARED / "data").mkdir()
        shutil.copytree(packages.ensure(), SHARED / "tools", symlinks=True)
        shutil.copy(Path(__file__).with_name("dcgmi"), SHARED)
        for worker in WORKERS:
            write(self.lab, worker, "/usr/local/sbin/fio", FIO)
            write(self.lab, worker, "/usr/local/sbin/ibnetdiscover", IBNETDISCOVER)
            # A bind mount, as a client of a parallel file system would have one.
            self.lab.ssh(worker, f"mkdir -p {MOUNTED}; mount --bind {FOLDER}/data {MOUNTED}")
        self.lab.ssh("worker-2", "touch /run/drill-refuses")
        self.lab.ssh("worker-3", "touch /run/drill-refuses")

    def net(self) -> Net:
        """The fabric as it was designed."""
        rails: dict[str, dict[str, int]] = {}
        for worker in WORKERS:
            read = " ".join(f"/sys/class/infiniband/{hca}/ports/1/gids/0" for hca in RAILS)
            gids = self.lab.ssh(worker, f"cat {read}").split()
            guids = [int("".join(gid.split(":")[4:]), 16) for gid in gids]
            rails[worker] = dict(zip(RAILS, guids, strict=True))
        return Net.of(rails)

    def cable(self, change: Callable[[Net], object] = lambda net: None) -> Net:
        """The designed fabric after a change."""
        net = self.net()
        change(net)
        (SHARED / "net").write_text(net.text())
        (SHARED / "at").write_text(f"H-{net.hcas['worker-1 mlx5_1'] - 1:016x}\n")
        self.lab.ssh("worker-1", START)
        return net

    def run(self, stage: str, *options: str, **thresholds: float) -> tuple[int, dict[str, Any], str]:
        """The exit code, the rows of a stage, and what was simulated. Rows of the stage are required."""
        words = ("accept", "criteria", "--for", "dev", "--project", str(self.stack.folder))
        rows = yaml.safe_load(self.lab.run(sys.executable, "-m", "busbar", *words).stdout)
        wanted = (f"{stage}.", "inventory.lab.nodes")
        rows["rows"] = [row | {"required": True} for row in rows["rows"] if row["id"].startswith(wanted)]
        for row in rows["rows"]:
            if limit := thresholds.get(row["id"].split(".")[-1]):
                row["threshold"] = limit
        criteria = self.temporary / "acceptance.yaml"
        criteria.write_text(yaml.safe_dump(rows))
        done = self.stack.busbar("accept", "run", "dev", "--criteria", str(criteria), *options)
        print(done.stdout)
        # What a run without a result has left must not be continued by the next one.
        shutil.rmtree(self.home / "unfinished", ignore_errors=True)
        folder = max(path for path in self.home.iterdir() if path.is_dir())
        found = json.loads((folder / "acceptance.json").read_text())
        again = self.stack.busbar("accept", "verify", str(folder))
        assert (again.returncode, "signature: none" in again.stdout) == (done.returncode or 2, True), (
            again.stdout
        )
        return done.returncode, {row["id"].split(".")[-1]: row for row in found["rows"]}, found["simulated"]


def four_workers(cluster: dict[str, Any]) -> None:
    workers = cluster["hosts"]["workers"]
    for name in WORKERS[len(workers) :]:
        key = keys.public_line(keys.host_key(name))
        workers.append({"name": name, "address": find(name).address, "host_key": key})
    # Stress takes nodes only where a measurement may run.
    cluster["validation"].update(
        enabled=True, collectives=["all_reduce"], max_bytes="4M", expected_by_collective={}
    )


def in_one_group(cluster: dict[str, Any]) -> None:
    for worker in cluster["hosts"]["workers"]:
        worker["topology"] = {"rail_group": "su-1"}


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    lab.boot("--workers", str(len(WORKERS)))
    found = Site(lab, tmp_path_factory.mktemp("fabric"))
    found.stack.configure(four_workers)
    found.stack.up()
    found.prepare()
    yield found
    shutil.rmtree(found.home)
    for worker in WORKERS[:2]:
        lab.ssh(worker, f"systemctl stop drill-ibsim 2>/dev/null; umount {MOUNTED}; rmdir {MOUNTED}")
        lab.ssh(worker, "rm -f /usr/local/sbin/{ibnetdiscover,fio,dcgmi} /run/drill-refuses")
    shutil.rmtree(SHARED)
    done = lab.run(sys.executable, "-m", "busbar", "up", "dev", "--yes", "--skip-preview", seconds=UP_SECONDS)
    for name in WORKERS[2:]:
        nspawn.stop(nspawn.folder(find(name)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def design(site: Site) -> str:
    """The option with the cabling as it was built."""
    site.cable()
    file = site.temporary / "cabling.csv"
    done = site.lab.run(
        sys.executable, "-m", "busbar", "accept", "cabling", "dev", "--project", str(site.stack.folder)
    )
    assert done.returncode == 0, done.stderr
    file.write_text(done.stdout)
    return str(file)


def test_the_cabling_as_built_is_accepted_by_its_own_design(site: Site, design: str) -> None:
    assert Path(design).read_text() == made.design(site.cable())
    code, rows, simulated = site.run("cabling", "--cabling", design)
    assert (code, rows["rails"]["reason"]) == (0, "8 cables; as designed")
    assert "on ibsim (a simulator of the fabric)" in simulated


def narrow(net: Net) -> None:
    net.plug(("worker-2 mlx5_1", 1), net.unplug(("worker-2 mlx5_1", 1)), "1xHDR")


@pytest.mark.parametrize(
    ("change", "row", "named"),
    [
        (
            lambda net: net.swap(("worker-2 mlx5_1", 1), ("worker-4 mlx5_1", 1)),
            "rails",
            "worker-2 mlx5_1 and worker-4 mlx5_1 are swapped: worker-2 mlx5_1 is in leaf-0-1 port 4, "
            "worker-4 mlx5_1 in leaf-0-1 port 2",
        ),
        (
            lambda net: net.unplug(("leaf-0-3", 34)),
            "uplinks",
            "leaf-0-3 port 34 has no link, expected spine-1 port 2",
        ),
        (narrow, "speed", "worker-2 mlx5_1: 1xHDR, 50 Gb/s, expected 400"),
    ],
)
def test_a_fault_of_the_cabling_is_named_and_nothing_else(
    site: Site, design: str, change: Callable[[Net], object], row: str, named: str
) -> None:
    site.cable(change)
    code, rows, _ = site.run("cabling", "--cabling", design)
    assert (code, rows[row]["reason"].startswith(named)) == (1, True), rows[row]["reason"]
    assert [name for name, each in rows.items() if each["result"] != "pass"] == [row]


def test_without_a_design_the_rail_groups_find_two_rails_of_a_node(site: Site) -> None:
    site.stack.configure(in_one_group)
    site.cable(lambda net: net.swap(("worker-3 mlx5_1", 1), ("worker-3 mlx5_3", 1)))
    code, rows, _ = site.run("cabling")
    assert (code, "worker-3 mlx5_1 and worker-3 mlx5_3 are swapped" in rows["rails"]["reason"]) == (1, True)


def test_where_the_fabric_refuses_the_rows_are_not_run(site: Site) -> None:
    site.lab.ssh("worker-1", "touch /run/drill-refuses")
    code, rows, _ = site.run("cabling")
    site.lab.ssh("worker-1", "rm /run/drill-refuses")
    assert (code, rows["speed"]["result"]) == (2, "not run")
    # The next two workers are asked as well.
    assert "worker-3: ibnetdiscover ended with exit code" in rows["speed"]["reason"]


def test_dcgm_is_found_on_the_hosts_and_a_test_that_fails_is_named(site: Site) -> None:
    def fail(tests: dict[str, Any]) -> None:
        warnings = [{"warning": "Persistence mode is off", "error_severity": 5}]
        tests["software"][1] |= {"status": "Fail", "warnings": warnings}

    code, rows, _ = site.run("stress")
    assert (code, "worker-1: dcgmi is not installed" in rows["diag"]["reason"]) == (2, True)
    for worker in WORKERS:
        text = made.diag(fail if worker == "worker-4" else lambda tests: None, GPUS)
        (SHARED / f"dcgmi-{worker}.json").write_text(text)
        site.lab.ssh(worker, f"install {FOLDER}/dcgmi /usr/local/sbin/dcgmi")
    code, rows, simulated = site.run("stress")
    named = "worker-4: software fails: configuration, not hardware: Persistence mode is off (GPU 1)"
    assert (code, rows["diag"]["reason"], "busbar-lab simulator" in simulated) == (1, named, True)


def test_storage_is_measured_where_all_nodes_have_mounted_it_and_nowhere_else(site: Site) -> None:
    low = {"write": 0.001, "read": 0.001, "iops": 1.0}
    site.lab.ssh("worker-4", f"umount {MOUNTED}; rmdir {MOUNTED}")
    code, rows, _ = site.run("storage", "--storage", MOUNTED, **low)
    assert (code, rows["mount"]["reason"]) == (1, "worker-4: the folder is not there")
    assert (rows["write"]["result"], site.lab.ssh("worker-4", f"ls -d {MOUNTED} || true")) == ("not run", "")
    site.lab.ssh("worker-4", f"mkdir {MOUNTED}")
    code, rows, _ = site.run("storage", "--storage", MOUNTED, **low)
    assert "worker-4: / " in rows["mount"]["reason"]
    site.lab.ssh("worker-4", f"mount --bind {FOLDER}/data {MOUNTED}")
    code, rows, _ = site.run("storage", "--storage", MOUNTED, **low)
    assert (code, "on 4 nodes" in rows["write"]["reason"]) == (0, True)
    assert [*(SHARED / "data").iterdir()] == []
