"""`busbar diagnose` on four workers, of which some are slow: it names the right one, and nothing else.

Open MPI, the MPI Operator and ssh between the workers are the real ones. The two rails of a worker are
simulated: a file on its host limits an HCA (lab/images/README.md).
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.hosts import keys, nspawn
from lab.topology import find
from tests.support.lab import PROJECT, UP_SECONDS, Lab, read_until
from tests.support.own_stack import STACK_FILE, OwnStack

pytestmark = pytest.mark.drill

Fault = AbstractContextManager[None]

WORKERS = ("worker-1", "worker-2", "worker-3", "worker-4")
HCAS = ("mlx5_1", "mlx5_3")
DIAGNOSE_SECONDS, END_SECONDS, PATHS_SECONDS = 900, 120, 120
# GB/s. A pair of the lab reaches five times as much where nothing else runs, and two cores are noisy.
# The lab's hosts share the CPUs that carry their traffic.
ONE_GROUP_AT_A_TIME = """
from busbar.cli.main import main
from busbar.manifests import groups
groups.PARALLEL = 1
main()
"""
EXPECTED = 0.05
MEGABITS, MEGABYTES = 80, 10  # of a slow link, of a slow rail
INJECTED, SPREAD, TENTH = 200, 0.03, 0.9  # GB/s of a rail, of one run, what a slow node has of it
CPU_MICROSECONDS = 5_000  # of each 100,000
DEVICE = "$(ip -o route get 10.77.0.11 | grep -o 'dev [^ ]*' | cut -d' ' -f2)"
LAB = "/usr/local/lib/busbar-lab"
RAILS, PATHS = f"{LAB}/rails", f"{LAB}/paths"
# Those of workers that listen: they accept connections and do not answer. systemd makes one $ of two.
FREEZE = """\
systemd-run --quiet --unit drill-freeze bash -c 'while sleep 0.2; do
  for pid in $$(pgrep -f "^sshd: .*StrictModes=no"); do
    grep -q ":0016 0*:0000 0A" /proc/$$pid/net/tcp && kill -STOP $$pid
  done
done'"""


@contextmanager
def fault(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    begin()
    try:
        yield
    finally:
        end()


def fault_on(lab: Lab, worker: str, begin: str, end: str) -> Fault:
    return fault(lambda: lab.ssh(worker, begin), lambda: lab.ssh(worker, end))


def slow_link(lab: Lab, worker: str) -> Fault:
    shape = f"root tbf rate {MEGABITS}mbit burst 64kb latency 50ms"
    return fault_on(lab, worker, f"tc qdisc add dev {DEVICE} {shape}", f"tc qdisc del dev {DEVICE} root")


def slow_rail(lab: Lab, worker: str, rail: int) -> Fault:
    limit = f"{RAILS}/{HCAS[rail]}/limit"
    return fault_on(lab, worker, f"echo {MEGABYTES} >{limit}", f"rm {limit}")


def injected_busbw(lab: Lab, worker: str, gbps: float) -> Fault:
    """Runs with other workers report the bandwidth of their slowest rail (simulated)."""
    files = " ".join(f"{RAILS}/{hca}/busbw" for hca in HCAS)
    return fault_on(lab, worker, f"echo {gbps} {SPREAD} | tee {files}", f"rm {files}")


def few_cpus(lab: Lab, worker: str) -> Fault:
    """For its pods; the kubelet has enough."""
    # Of a real K3s it is a slice of systemd's.
    find_file = "cd /sys/fs/cgroup; file=$(ls cpu/kubepods*/cpu.cfs_quota_us kubepods*/cpu.max 2>/dev/null)"
    end = f"{find_file}; echo -1 >$file || echo max >$file"
    return fault_on(lab, worker, f"{find_file}; echo {CPU_MICROSECONDS} >$file", end)


def frozen_sshd(lab: Lab, worker: str) -> Fault:
    return fault_on(lab, worker, FREEZE, "systemctl stop drill-freeze")


def no_image(lab: Lab, worker: str) -> Fault:
    """There is nowhere to pull it from."""
    image = "docker.io/busbar-lab/nccl-tests:1"

    def renamed(former: str, new: str) -> str:
        return f"k3s ctr images tag {former} {new} && k3s ctr images rm {former}"

    return fault_on(lab, worker, renamed(image, f"{image}-kept"), renamed(f"{image}-kept", image))


@dataclass(frozen=True)
class Case:
    """Faults, and what shall be found: the exit code, and rows as cause, nodes and rail.

    `absent`: the nodes that shall not be measured. All that is in neither is healthy. `expected`: GB/s.
    """

    faults: Callable[[Lab], list[Fault]]
    code: int
    rows: tuple[tuple[str, tuple[str, ...], int | None], ...] = ()
    absent: tuple[str, ...] = ()
    nothing_healthy: bool = False
    expected: float = EXPECTED


NODE, RAIL, SETTINGS = "node", "rail", "settings, or what all nodes share"
CASES = {
    "nothing is slow": Case(lambda lab: [], 0),
    "the link of a worker is slow": Case(
        lambda lab: [slow_link(lab, "worker-2")], 1, ((NODE, ("worker-2",), None),)
    ),
    "a rail is slow": Case(lambda lab: [slow_rail(lab, "worker-3", 1)], 1, ((RAIL, ("worker-3",), 1),)),
    "rails of two workers are slow": Case(
        lambda lab: [slow_rail(lab, "worker-1", 0), slow_rail(lab, "worker-4", 1)],
        1,
        ((RAIL, ("worker-1",), 0), (RAIL, ("worker-4",), 1)),
    ),
    "a worker is slower than its peers by a tenth": Case(
        lambda lab: [
            injected_busbw(lab, each, INJECTED * (TENTH if each == "worker-2" else 1)) for each in WORKERS
        ],
        1,
        ((NODE, ("worker-2",), None),),
    ),
    # The run of one rail alone needs little of them: of some such runs 0.05 GB/s is left.
    "a worker has few CPUs": Case(
        lambda lab: [few_cpus(lab, "worker-1")], 1, ((NODE, ("worker-1",), None),), expected=2 * EXPECTED
    ),
    "the sshd of a worker hangs": Case(
        lambda lab: [frozen_sshd(lab, "worker-4")], 1, ((NODE, ("worker-4",), None),)
    ),
    "the pod of a worker cannot start": Case(
        lambda lab: [no_image(lab, "worker-2")], 2, absent=("worker-2",)
    ),
    "all links are slow": Case(
        lambda lab: [slow_link(lab, each) for each in WORKERS],
        1,
        ((SETTINGS, (), None),),
        nothing_healthy=True,
    ),
}


def named(found: dict[str, Any]) -> set[tuple[str, tuple[str, ...], int | None]]:
    return {(row["cause"], tuple(row["nodes"]), row["rail"]) for row in found["rows"]}


class Site:
    """The lab's stack with four workers, as its admin uses it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.stack = lab, OwnStack(PROJECT, folder, lab.environment)

    def diagnose(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Exit code and findings."""
        began = time.monotonic()
        done = self.lab.run(*self.command, *words, "--json", cwd=self.stack.folder, seconds=DIAGNOSE_SECONDS)
        print(done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)
        for each in found["results"]:
            print(f"  {each['name']}: {each['busbw']} GB/s {each['reason']}")
        print(
            f"exit code {done.returncode} after {time.monotonic() - began:.0f} s; jobs {found['seconds']} s, "
            f"{found['node_minutes']} node-minutes"
        )
        return done.returncode, {**found, "said": done.stderr}

    def paths(self) -> subprocess.CompletedProcess[str]:
        """Measures the paths of all workers; in less than two minutes."""
        words = (sys.executable, "-m", "busbar", "diagnose", "dev", "--paths", "--json")
        return self.lab.run(*words, cwd=self.stack.folder, seconds=PATHS_SECONDS)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command, env=self.lab.environment, cwd=self.stack.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    @property
    def quarantined(self) -> list[str]:
        stack = yaml.safe_load((self.stack.folder / STACK_FILE).read_text(encoding="utf-8"))
        workers = stack["config"]["busbar:cluster"]["hosts"]["workers"]
        return [each["name"] for each in workers if "quarantine" in each]

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-c", ONE_GROUP_AT_A_TIME, "diagnose", "dev")

    @property
    def left(self) -> str:
        return self.lab.kubectl("get mpijobs,pods -A -l busbar/nccl-run -o name")

    def judge(self, case: Case) -> list[str]:
        """Runs it; what is not as it shall be."""
        self.stack.configure(lambda cluster: cluster["validation"].update(expected_busbw_gbps=case.expected))
        with ExitStack() as faults:
            for each in case.faults(self.lab):
                faults.enter_context(each)
            code, found = self.diagnose()
        slow = {node for _, nodes, _ in case.rows for node in nodes}
        healthy = [] if case.nothing_healthy else sorted({*WORKERS} - slow - {*case.absent})
        wanted = {
            "exit code": (code, case.code),
            "named": (named(found), {*case.rows}),
            "healthy": (sorted(found["healthy"]), healthy),
            "not measured": (sorted(found["absent"]), sorted(case.absent)),
            "left in the cluster": (self.left, ""),
        }
        return [f"{what}: got {got}, expected {due}" for what, (got, due) in wanted.items() if got != due]


def four_workers(cluster: dict[str, Any]) -> None:
    workers = cluster["hosts"]["workers"]
    for name in WORKERS[len(workers) :]:
        key = keys.public_line(keys.host_key(name))
        workers.append({"name": name, "address": find(name).address, "host_key": key})
    cluster["validation"].update(
        enabled=True,
        collectives=["all_reduce"],
        max_bytes="4M",
        expected_busbw_gbps=EXPECTED,
        expected_by_collective={},
    )


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    lab.boot("--workers", str(len(WORKERS)))
    made = Site(lab, tmp_path_factory.mktemp("diagnose") / "project")
    made.stack.configure(four_workers)
    made.stack.up()
    # Stage C needs their names, and the lab's NCCL opens none, which the gate of an update would miss.
    made.stack.configure(lambda cluster: cluster["validation"].update(hcas=[*HCAS]))
    yield made
    done = lab.run(sys.executable, "-m", "busbar", "up", "dev", "--yes", "--skip-preview", seconds=UP_SECONDS)
    for name in WORKERS[2:]:
        nspawn.stop(nspawn.folder(find(name)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
def test_what_is_slow_is_named_and_nothing_else(site: Site, name: str) -> None:
    assert site.judge(CASES[name]) == []


def test_a_slow_path_to_a_gpu_is_named_and_gone_once_it_is_repaired(site: Site) -> None:
    fault = "mlx5_3 gpu 41"
    with fault_on(site.lab, "worker-3", f"echo {fault} >{PATHS}", f"rm {PATHS}"):
        done = site.paths()
        found = json.loads(done.stdout)
        [row] = found["rows"]
        assert done.returncode == 1, done.stderr
        assert row["path"].startswith("worker-3 mlx5_3 with GPU 0000:")
        assert row["measured"] == "41 Gb/s"
        assert row["points_to"].startswith("the way between GPU and HCA")
        assert found["not_run"] == []
    healthy = site.paths()
    assert (healthy.returncode, json.loads(healthy.stdout)["rows"]) == (0, []), healthy.stderr
    for worker in WORKERS:
        assert site.lab.ssh(worker, "pgrep -x ib_write_bw || true").strip() == ""


PKEY, LIBRARY = "/sys/class/infiniband/mlx5_3/ports/1/pkeys/0", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
# Fault of worker-2 -> its end, and what `busbar nodes` says of it.
FACTS = {
    f"echo mlx5_3 2048 >{LAB}/mtus": (f"rm {LAB}/mtus", "has active MTU 2048 on mlx5_3, most workers of"),
    f"echo 0x8a17 >{PKEY}": (f"echo 0xffff >{PKEY}", "has P_Key 0x8a17 on mlx5_3, most workers of"),
    f"echo 0000:11:00.0 >{LAB}/inforom": (f"rm {LAB}/inforom", "infoROM is corrupted at gpu 0000:11:00.0"),
    f"touch {LIBRARY}": (f"rm {LIBRARY}", f"{LIBRARY} of the NVIDIA driver has 0 bytes"),
    f"echo mlx5_1 512 - >{LAB}/pci": (f"rm {LAB}/pci", "MaxReadReq of mlx5_1 is 512 bytes"),
    f"echo kvm >{LAB}/virtual": (f"rm {LAB}/virtual", "ATS is off on mlx5_1 in a VM (kvm)"),
}


def test_each_fact_that_breaks_rdma_is_named_with_its_host(site: Site) -> None:
    site.stack.configure(lambda cluster: cluster["validation"].update(transport="rdma"))
    words = (sys.executable, "-m", "busbar", "nodes", "dev", "--json")
    try:
        with ExitStack() as faults:
            for begin, (end, _) in FACTS.items():
                faults.enter_context(fault_on(site.lab, "worker-2", begin, end))
            found = json.loads(site.lab.run(*words, cwd=site.stack.folder).stdout)["findings"]
    finally:
        site.stack.configure(lambda cluster: cluster["validation"].update(transport="socket"))
    named = {text: [each["host"] for each in found if text in each["what"]] for _, text in FACTS.values()}
    assert named == {text: ["worker-2"] for _, text in FACTS.values()}, found
    assert all(each["fix"] for each in found)


def test_an_interrupted_diagnosis_continues_in_the_stage_that_it_was_in(site: Site) -> None:
    with slow_rail(site.lab, "worker-3", 1):
        process = site.start()
        read_until(process.stderr, "stage B: 2 of")
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=END_SECONDS)
        print(rest)
        assert process.returncode == 130
        assert "What is known is kept: the same command continues" in rest
        assert site.left == ""
        code, found = site.diagnose()
    assert (code, named(found)) == (1, {("rail", ("worker-3",), 1)})
    assert "continuing: 8 groups have a result" in found["said"]
    names = [each["name"] for each in found["results"]]
    assert len(names) == len({*names}), "no group ran twice"


def test_a_worker_that_is_named_goes_into_quarantine_and_comes_back_after_three_partners_found_it_good(
    site: Site,
) -> None:
    # The gate of the updates would miss that NCCL names them.
    site.stack.configure(lambda cluster: cluster["validation"].pop("hcas"))
    with slow_link(site.lab, "worker-2"):
        code, found = site.diagnose("--quarantine")
        assert (code, named(found)) == (1, {("node", ("worker-2",), None)})
        assert site.quarantined == ["worker-2"]
        site.stack.up()
        code, _ = site.diagnose("--release")
        assert (code, site.quarantined) == (1, ["worker-2"]), "it is still slow"
    code, found = site.diagnose("--release")
    assert (code, site.quarantined) == (0, [])
    partners = {node for each in found["results"] if each["stage"] == "B" for node in each["nodes"]}
    assert partners == {*WORKERS}
    site.stack.up()
