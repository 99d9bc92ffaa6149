"""The paths of rails: host/paths.sh with the simulated ib_write_bw, and what its results say."""

import asyncio
import json
import random
import socket
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from busbar.fabric import paths
from busbar.fabric.paths import (
    BETWEEN,
    GPU_TO_HCA,
    PCIE,
    REFUSED,
    Found,
    Memory,
    Rail,
    nearest_gpu,
    pcie_gbps,
    rails_of,
)
from busbar.hosts.inventory import Host
from busbar.hosts.remote import ScriptError
from lab.hosts import disk
from tests.support.bash import run
from tests.support.reports import hca
from tests.unit.preflight.samples import REQUIRED, a_host

SIMULATOR = Path(disk.__file__).parent / "hardware/ib_write_bw"
GPUS = "printf '%s\\n' 00000000:10:00.0 00000000:11:00.0"


def free_ports(count: int) -> int:
    """The first of neighbouring free TCP ports. The kernel gives none of this range to a client."""
    for first in random.sample(range(10_000, 30_000, count), 100):
        try:
            for port in range(first, first + count):
                with socket.socket() as free:
                    free.bind(("", port))
        except OSError:
            continue
        return first
    raise AssertionError("no neighbouring ports are free")


class Machine:
    """A host of the lab with two HCAs and two GPUs, in a folder."""

    def __init__(self, folder: Path, *faults: str) -> None:
        self.folder = folder
        for name in ("mlx5_1", "mlx5_3"):
            port = folder / name / "ports/1"
            port.mkdir(parents=True, exist_ok=True)
            (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
        for name in ("bin", "image"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "paths").write_text("".join(f"{each}\n" for each in faults))
        self.program("nvidia-smi", f"#!/bin/sh\n{GPUS}\n")
        text = SIMULATOR.read_text().replace("/usr/local/lib/busbar-lab/paths", str(folder / "paths"))
        self.program("ib_write_bw", text.replace("/sys/class/infiniband", str(folder)))
        self.port = free_ports(4)

    def program(self, name: str, text: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(text)
        file.chmod(0o755)

    def script(
        self, verb: str, *runs: str, more: str = "", **values: str
    ) -> subprocess.CompletedProcess[str]:
        """The whole script. Runs take no time, and a silent one ends after 2 s."""
        call = (
            f"begin_verb() {{ set -eEuo pipefail; trap 'exit 9' ERR; }}\n"
            f"PATH={self.folder}/bin:$PATH K3S=k3s\n"
            f"INFINIBAND={self.folder} PCI={self.folder} MODULES={self.folder} FIRST_PORT={self.port}\n"
            f"RUN_SECONDS=0 MOST_SECONDS=2 CONNECT_SECONDS=20\n{more}\nmain"
        )
        return run("paths", call, VERB=verb, RUNS=" ".join(runs), **values)

    def results(self, verb: str, *runs: str, more: str = "") -> list[float | str]:
        """The bandwidth of each run, or why there is none."""
        done = self.script(verb, *runs, more=more)
        assert done.returncode == 0, done.stderr
        memory: Memory = "host" if verb == "loopback" else "partner"
        found = []
        for word, result in zip(runs, json.loads(done.stdout)["runs"], strict=True):
            path = paths.RailPath(host="a", rail=word, memory="gpu" if word[-1] != "/" else memory, peer="b")
            path = path.after(**result)
            found.append(path.gbps or path.why)
        return found


HOST, OTHER_HOST = "mlx5_1/1//", "mlx5_3/1//"
GPU, OTHER_GPU = "mlx5_1/1//0000:10:00.0", "mlx5_3/1//0000:11:00.0"


def test_each_rail_is_measured_with_the_memory_of_the_host_and_of_a_gpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "mlx5_3 gpu 41")
    assert machine.results("loopback", HOST, GPU, OTHER_HOST, OTHER_GPU) == [392.0, 392.0, 392.0, 41.0]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("mlx5_1 gpu refused", "Couldn't allocate MR"),
        ("mlx5_1 gpu unbuilt", "Invalid Command or flag."),
        ("mlx5_1 gpu silent", "timed out after 20 s"),
    ],
)
def test_a_path_without_a_result_has_the_reason(tmp_path: Path, fault: str, why: str) -> None:
    assert Machine(tmp_path, fault).results("loopback", HOST, GPU) == [392.0, why]


def test_the_devices_of_a_host_have_their_folders_in_sysfs(tmp_path: Path) -> None:
    done = Machine(tmp_path).script("look")
    assert done.returncode == 0, done.stderr
    devices = json.loads(done.stdout)["devices"]
    assert devices["mlx5_1"] == f"{tmp_path}/mlx5_1/device"
    assert devices["0000:10:00.0"] == f"{tmp_path}/0000:10:00.0"


def test_an_hca_is_measured_with_the_gpu_below_its_switch() -> None:
    devices = {"mlx5_1": "/pci/b/mlx5_1", "0000:10:00.0": "/pci/a/10", "0000:11:00.0": "/pci/b/11"}
    assert nearest_gpu(devices, "mlx5_1", 0) == nearest_gpu(devices, "mlx5_1", 1) == "0000:11:00.0"
    devices["mlx5_1"] = "/pci/c/mlx5_1"
    assert [nearest_gpu(devices, "mlx5_1", rail) for rail in range(3)] == [
        "0000:10:00.0", "0000:11:00.0", "0000:10:00.0",
    ]  # fmt: skip
    assert nearest_gpu({"mlx5_1": "/pci/b/mlx5_1"}, "mlx5_1", 0) == ""


def test_a_server_of_another_host_that_does_not_answer_is_no_slow_path(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    found = machine.results("connect", HOST, more="ADDRESS=127.0.0.1 CONNECT_SECONDS=1")
    assert found == [f"Couldn't connect to 127.0.0.1:{machine.port}"]


def test_a_partner_whose_answers_are_lost_is_no_slow_path() -> None:
    path = paths.RailPath(host="worker-2", rail="mlx5_1", memory="partner", peer="worker-1")
    lost = path.after(status=124, server="", client="")
    assert lost.why == "Couldn't connect to worker-1: timed out after 20 s"
    assert path.after(status=124, server="", client="  RDMA_Write BW Test\n").is_measured


def test_a_port_that_another_program_has_is_no_slow_path(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with socket.socket() as other:
        other.bind(("", machine.port + 1))
        other.listen()
        found = machine.results("loopback", HOST, OTHER_HOST)
    assert found == [392.0, f"Couldn't listen to port {machine.port + 1}"]


def test_a_rail_is_measured_with_a_partner_that_serves(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "mlx5_3 partner 97.5")
    # The simulator tells hosts by their addresses.
    both = "ADDRESS=127.0.0.2\n(VERB=serve; main) >/dev/null &\n"
    assert machine.results("connect", HOST, OTHER_HOST, more=both) == [392.0, 97.5]


def test_a_bandwidth_that_is_no_number_is_not_measured() -> None:
    path = paths.RailPath(host="worker-2", rail="mlx5_1", memory="host")
    for text in (" 8388608    0    -nan    -nan    0.0\n", " 8388608    10    inf    inf    0.0\n"):
        assert not path.after(status=0, server="", client=text).is_measured


DEVICES = {"mlx5_1": "/pci/b/mlx5_1", "0000:10:00.0": "/pci/b/10"}
TABLE = " 8388608    10       0.00            {:.2f}         0.0\n"


class FakeHosts:
    """Answers of host/paths.sh by host: "perftest" is missing on those of `without`."""

    def __init__(self, *, slow: str = "", without: str = "") -> None:
        self.slow, self.without, self.asked = slow, without, list[tuple[str, str, str]]()

    async def run(self, host: Host, _: str, values: dict[str, str], *, seconds: int) -> dict[str, Any]:
        verb, runs = values["VERB"], values.get("RUNS", "")
        self.asked.append((host.name, verb, runs))
        if verb == "look":
            return {"hcas": [hca("mlx5_1")], "links": [], "devices": DEVICES}
        if host.name == self.without:
            raise ScriptError("paths failed: perftest is not installed", host.name, "install it")
        gbps = 41.0 if host.name == self.slow and verb == "loopback" else 392.0
        each = {"status": 0, "server": "", "client": TABLE.format(gbps)}
        return {"runs": [] if verb == "serve" else [each for _ in runs.split()]}


def measured(hosts: FakeHosts) -> Found:
    workers = {f"worker-{n}": a_host(f"worker-{n}") for n in range(1, 5)}
    rounds = [[("worker-1", "worker-2"), ("worker-3", "worker-4")]]
    required = REQUIRED.model_copy(update={"rails": 1})
    found = paths.measure(cast(Any, hosts), workers, lambda _: required, rounds, lambda _: None)
    return asyncio.run(found)


def test_hosts_are_measured_alone_and_then_in_pairs() -> None:
    hosts = FakeHosts(slow="worker-3")
    found = measured(hosts)
    assert {row.path.split()[0] for row in found.rows} == {"worker-3"}
    assert len(found.paths) == 4 * 2 + 2
    assert [each for each in hosts.asked if each[1] == "serve"] == [
        ("worker-1", "serve", "mlx5_1/1//"),
        ("worker-3", "serve", "mlx5_1/1//"),
    ]


def test_a_host_that_cannot_be_measured_is_in_no_pair() -> None:
    found = measured(FakeHosts(without="worker-2"))
    assert found.not_run == [
        "worker-2: paths failed: perftest is not installed. Fix: install it",
        "worker-1 and worker-2: no result in loopback",
    ]
    assert found.exit_code == 2


# K3s's containerd has two images, and the container of a run that was killed.
K3S = """#!/bin/bash
echo "$*" >>{folder}/calls
case "$2 $3" in
  "images ls") printf '%s\\n' docker.io/site/nccl:1 reg.site/none@sha256:01 ;;
  "run "*)
    while [[ $1 != */* || $1 == /* ]]; do
      [[ $1 != --env ]] || export "$2"
      shift
      [[ $1 != [A-Z]*=* ]] || shift
    done
    if [[ $1 == reg.site/none* ]]; then
      echo 'ctr: exec: "bash": executable file not found' >&2
      exit 1
    fi
    shift 2
    PATH={folder}/image:$PATH exec "$@" ;;
esac
"""


def without_perftest(machine: Machine, image: str) -> subprocess.CompletedProcess[str]:
    """Two runs on a host that has only the images of its K3s."""
    (machine.folder / "bin/ib_write_bw").rename(machine.folder / "image/ib_write_bw")
    machine.program("k3s", K3S.format(folder=machine.folder))
    return machine.script("loopback", HOST, GPU, IMAGE=image)


def test_a_host_without_perftest_runs_that_of_the_image(tmp_path: Path) -> None:
    done = without_perftest(Machine(tmp_path), "site/nccl:1")
    assert done.returncode == 0, done.stderr
    assert [each["status"] for each in json.loads(done.stdout)["runs"]] == [0, 0]
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("ctr")]
    [container] = [call for call in calls if call.startswith("ctr run")]
    assert {"--rm", "--net-host", "--privileged", "docker.io/site/nccl:1"} <= {*container.split()}
    assert calls[-1] == "ctr containers rm busbar-paths", "one that was killed has left its record"


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("", "perftest is not installed on this host. Fix: install the package perftest of this system"),
        (
            "site/other:1",
            "K3s has not pulled site/other:1. Fix: install perftest, or pull the image there: k3s",
        ),
        ("reg.site/none:2@sha256:01", 'does not run it: ctr: exec: "bash": executable file not found. Fix: '),
    ],
)
def test_no_perftest_on_host_or_image_says_what_to_do(tmp_path: Path, image: str, why: str) -> None:
    done = without_perftest(Machine(tmp_path), image)
    assert (done.returncode, done.stdout) == (1, "")
    assert why in done.stderr


MEMORIES: tuple[Memory, ...] = ("host", "gpu", "partner")


def found_on(*faults: tuple[str, str, float | str]) -> Found:
    """Four hosts with one rail of 400 Gb/s, with faults: host, memory, and Gb/s or why there are none."""
    names = [f"worker-{number}" for number in range(1, 5)]
    found = Found({name: {"mlx5_1": Rail("mlx5_1/1", 400, 504.1)} for name in names})
    known = {(host, memory): result for host, memory, result in faults}
    for name, peer in zip(names, ["", "worker-1", "", "worker-3"], strict=True):
        for memory in MEMORIES if peer else MEMORIES[:2]:
            result = known.get((name, memory), 392.0)
            path = paths.RailPath(host=name, rail="mlx5_1", memory=memory, gpu="7", peer=peer)
            found.take([path.model_copy(update={"why" if isinstance(result, str) else "gbps": result})])
    return found


REFUSAL, SILENCE = "Couldn't allocate MR", "timed out after 20 s"


@pytest.mark.parametrize(
    ("faults", "rows"),
    [
        ([], []),
        (
            [("worker-2", "host", 90.0), ("worker-2", "gpu", 91.0)],
            [("worker-2 mlx5_1 with host memory", PCIE), ("worker-2 mlx5_1 with GPU 7", PCIE)],
        ),
        ([("worker-2", "gpu", 41.0)], [("worker-2 mlx5_1 with GPU 7", GPU_TO_HCA)]),
        ([("worker-2", "gpu", REFUSAL)], [("worker-2 mlx5_1 with GPU 7", REFUSED)]),
        ([("worker-2", "partner", SILENCE)], [("worker-2 mlx5_1 with worker-1", BETWEEN)]),
        (
            [("worker-1", "gpu", 41.0), ("worker-2", "partner", 41.0)],
            [("worker-1 mlx5_1 with GPU 7", GPU_TO_HCA)],
        ),
    ],
)
def test_each_slow_path_and_no_other_is_named_with_what_it_points_to(faults: Any, rows: Any) -> None:
    found = found_on(*faults)
    assert [(row.path, row.points_to) for row in found.rows] == rows
    assert (found.not_run, found.exit_code) == ([], 1 if rows else 0)


def test_a_path_above_the_floor_is_slow_beside_its_peers() -> None:
    found = found_on(("worker-2", "gpu", 185.0))
    for rails in found.rails.values():
        rails["mlx5_1"] = Rail("mlx5_1/1", 200, None)
    [row] = found.rows
    assert row.expected == "at least 180 Gb/s, the median of all hosts is 392 Gb/s"


def test_what_was_not_measured_is_not_run_with_its_fix() -> None:
    found = found_on(("worker-2", "gpu", "Invalid Command or flag."))
    [text] = found.not_run
    assert text.startswith(
        "worker-2 mlx5_1 with GPU 7: Invalid Command or flag. Fix: build perftest with CUDA"
    )
    assert (found.rows, found.exit_code) == ([], 2)
    assert Found(not_run=["worker-1: perftest is not installed"]).exit_code == 2


@pytest.mark.parametrize(
    ("speed", "width", "gbps"),
    [
        ("32.0 GT/s PCIe", "16", 504.1),
        ("16.0 GT/s PCIe", "8", 126.0),
        ("Unknown", "16", None),
        ("", "", None),
    ],
)
def test_the_rate_of_a_pcie_link_is_after_its_encoding(speed: str, width: str, gbps: float | None) -> None:
    assert pcie_gbps({"speed": speed, "width": width}) == gbps


@pytest.mark.parametrize(("index", "word"), [(None, "mlx5_1/1/"), (3, "mlx5_1/1/3")])
def test_a_gid_is_named_where_the_job_names_one(index: int | None, word: str) -> None:
    required = REQUIRED.model_copy(update={"rails": 1, "link_layer": "ethernet", "gid_index": index})
    port = hca("mlx5_1", link_layer="Ethernet", gids={"1": "RoCE v2", "3": "RoCE v2"})
    rails, _ = rails_of({"hcas": [port], "links": [], "devices": DEVICES}, required)
    assert [rail.word for rail in rails.values()] == [word]


def test_the_second_port_of_an_hca_is_a_rail_of_its_own() -> None:
    required = REQUIRED.model_copy(update={"rails": 3})
    answer = {"hcas": [hca("mlx5_1"), hca("mlx5_1", port=2)], "links": [], "devices": DEVICES}
    rails, missing = rails_of(answer, required)
    assert {name: rail.word for name, rail in rails.items()} == {
        "mlx5_1": "mlx5_1/1/",
        "mlx5_1:2": "mlx5_1/2/",
    }
    assert missing == "2 of 3 rails found (no other HCA)"


def test_without_a_gpu_only_the_memory_of_the_host_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(DEVICES, "0000:10:00.0")
    found = measured(FakeHosts())
    assert {path.memory for path in found.paths} == {"host", "partner"}
    assert found.not_run[0] == "worker-1 with GPU: nvidia-smi shows no GPU"


def test_the_floor_of_an_unusual_link_is_nine_tenths_of_the_smaller_limit() -> None:
    assert (Rail("a/1", 100, 63.0).floor, Rail("a/1", 100, None).floor) == (56.7, 90.0)
