"""Each path of a host's rails on its own, by host/paths.sh: HCA and memory in loopback, then HCA and partner.

A path is compared with a floor, and with the median of the same path on all hosts. perftest takes the smaller
MTU of both ends and P_Key 0, so it sees neither; preflight compares them.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from os.path import commonpath
from typing import Any, Literal

from busbar.exits import FAILED, NO_VERDICT
from busbar.fabric.localise import Places, plan
from busbar.finding import with_fix
from busbar.hosts.inventory import Host
from busbar.hosts.remote import Hosts, on_each
from busbar.models import StrictModel
from busbar.preflight.network_checks import choose_rails, rate_gbps
from busbar.preflight.report import Hca
from busbar.preflight.spec import HostRequirements
from busbar.text import counted

SCRIPT = "paths"
# A run of host/paths.sh takes so many seconds as a rule, and at most; its messages have so many bytes.
RUN_SECONDS, MOST_SECONDS = 6, 35
BYTES = "8388608"
LOOK_SECONDS = 60
# Gb/s of GPU memory in loopback by the rate of the link (Azure/azurehpc-health-checks, pull request 38).
FLOORS = {200.0: 180.0, 400.0: 380.0}
PART_OF_LIMIT = PART_OF_MEDIAN = 0.9
# A median of fewer hosts may be that of a slow one.
FEWEST_FOR_A_MEDIAN = 3
# PCIe sends 128 bits of data as 130 bits (below 8 GT/s fewer, which only a faulty link has).
PCIE_ENCODING = 128 / 130

PCIE = "PCIe of the HCA: look at its width, speed, slot and MaxReadReq (lspci -vv)"
GPU_TO_HCA = (
    "the way between GPU and HCA: look at ACS and the IOMMU of the host, at ATS in a virtual machine, and "
    "whether both are below one switch (nvidia-smi topo -m)"
)
REFUSED = "GPUDirect RDMA: load nvidia-peermem, or use the open kernel modules with DMA-BUF"
BETWEEN = "cable, switch or rate: look at the ports of both ends (ibqueryerrors, iblinkinfo)"
_BUILD = "build perftest with CUDA (docs/localise.md)"
# perftest prints these where it has no result -> the fix.
FIXES = {
    "Invalid Command or flag": _BUILD,
    "Unsupported memory type": _BUILD,
    "Failed to load CUDA": f"install the driver's libcuda.so.1, or {_BUILD}",
    "Couldn't listen to port": "end the program of this host that has this TCP port",
    "Couldn't connect to": "open the TCP ports 18600 and up between the hosts, one for each rail",
}
_REFUSALS = ("Couldn't allocate MR", "DMA-BUF is not supported")
_SILENT = "timed out after 20 s"
# Exit codes of `timeout`.
_TIMED_OUT = (124, 137)

Memory = Literal["host", "gpu", "partner"]


class RailPath(StrictModel):
    """The result of one path of a host. `gbps` is None where `why` says what is missing. `peer`: partner."""

    host: str
    rail: str
    memory: Memory
    gpu: str = ""
    peer: str = ""
    gbps: float | None = None
    why: str = ""

    def __str__(self) -> str:
        to = {"host": "host memory", "gpu": f"GPU {self.gpu}", "partner": self.peer}[self.memory]
        return f"{self.host} {self.rail} with {to}"

    @property
    def result(self) -> str:
        """The bandwidth, or the reason why there is none."""
        return self.why if self.gbps is None else f"{self.gbps:g} Gb/s"

    @property
    def is_refused(self) -> bool:
        """Whether the HCA cannot use the memory of the GPU."""
        return self.memory == "gpu" and self.why.startswith(_REFUSALS)

    @property
    def is_measured(self) -> bool:
        """A result is a bandwidth, a run of perftest that began and did not end, or a refusal of the HCA."""
        return self.gbps is not None or self.why == _SILENT or self.is_refused

    def after(self, status: int, server: str, client: str) -> RailPath:
        """This path with the result of a run: exit code of the client, and what both ends have printed."""
        lines = [line.strip() for line in [*server.splitlines(), *client.splitlines()]]
        known = next((line for line in lines if line.startswith((*FIXES, *_REFUSALS))), "")
        rows = [line.split() for line in lines if line.startswith(f"{BYTES} ")]
        # A client of a server that could not listen has met another program.
        gbps = float(rows[-1][3]) if status == 0 and rows else math.nan
        if math.isfinite(gbps) and not known.startswith("Couldn't listen"):
            return self.model_copy(update={"gbps": gbps})
        why = known or next((line for line in reversed(lines) if line.strip("-")), "no result, and no reason")
        if status in _TIMED_OUT and not known:
            # perftest prints this title once both ends have met.
            is_met = self.memory != "partner" or "BW Test" in client
            why = _SILENT if is_met else f"Couldn't connect to {self.peer}: {_SILENT}"
        return self.model_copy(update={"why": why})


@dataclass(frozen=True)
class Rail:
    """A rail: "HCA/PORT/GID_INDEX", the rates of its link and of PCIe, and the nearest GPU ("": none)."""

    word: str
    link_gbps: float
    pcie_gbps: float | None
    gpu: str = ""

    @property
    def floor(self) -> float:
        """The least bandwidth in Gb/s that is well."""
        limit = min(self.link_gbps, self.pcie_gbps or self.link_gbps)
        return FLOORS.get(self.link_gbps, round(PART_OF_LIMIT * limit, 1))


@dataclass(frozen=True)
class Row:
    """A path that is slow, and where to look first."""

    path: str
    measured: str
    expected: str
    points_to: str


@dataclass
class Found:
    """The results of all hosts. `not_run`: the parts without a result, each with its reason."""

    rails: dict[str, dict[str, Rail]] = field(default_factory=dict)
    paths: list[RailPath] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1 if a path is slow, 2 if one was not measured."""
        return FAILED if self.rows else NO_VERDICT if self.not_run or not self.paths else 0

    @property
    def rows(self) -> list[Row]:
        """The slow paths. A path between hosts is named only where both ends are well by themselves."""
        medians = self._medians()
        slow = [path for path in self.paths if self._is_slow(path, medians[path.rail, path.memory])]
        alone = {(path.host, path.rail) for path in slow if path.memory != "partner"}
        with_host_memory = {(path.host, path.rail) for path in slow if path.memory == "host"}
        rows = []
        for path in slow:
            if path.memory != "partner":
                gpu = REFUSED if path.is_refused else GPU_TO_HCA
                points_to = PCIE if (path.host, path.rail) in with_host_memory else gpu
            elif alone.isdisjoint({(path.host, path.rail), (path.peer, path.rail)}):
                points_to = BETWEEN
            else:
                continue
            expected = f"at least {self.rails[path.host][path.rail].floor:g} Gb/s"
            if median := medians[path.rail, path.memory]:
                expected += f", the median of all hosts is {median:g} Gb/s"
            rows.append(Row(str(path), path.result, expected, points_to))
        return rows

    def _is_slow(self, path: RailPath, median: float) -> bool:
        floor = max(self.rails[path.host][path.rail].floor, PART_OF_MEDIAN * median)
        return path.gbps is None or path.gbps < floor

    def _medians(self) -> dict[tuple[str, str], float]:
        """The median of each path, by rail and memory, over all hosts; 0 where few hosts have one."""
        same: dict[tuple[str, str], list[float]] = defaultdict(list)
        for path in self.paths:
            same[path.rail, path.memory] += [] if path.gbps is None else [path.gbps]
        enough = {key: each for key, each in same.items() if len(each) >= FEWEST_FOR_A_MEDIAN}
        return defaultdict(float, {key: statistics.median(each) for key, each in enough.items()})

    def take(self, answer: Sequence[RailPath] | str) -> None:
        """Keep the paths of a host, or the reason why there are none."""
        if isinstance(answer, str):
            self.not_run.append(answer)
            return
        for path in answer:
            if path.is_measured:
                self.paths.append(path)
            else:
                fix = next((fix for text, fix in FIXES.items() if path.why.startswith(text)), "")
                self.not_run.append(with_fix(f"{path}: {path.why}", fix))


def pcie_gbps(link: Mapping[str, str]) -> float | None:
    """The rate of a PCIe link with sysfs's texts, such as "32.0 GT/s PCIe" and "16"; None: not known."""
    speed, _, unit = link.get("speed", "").partition(" ")
    width = link.get("width", "")
    if not unit.startswith("GT/s") or not width.isdigit():
        return None
    return round(float(speed) * int(width) * PCIE_ENCODING, 1)


def nearest_gpu(devices: Mapping[str, str], hca: str, number: int) -> str:
    """The GPU that shares most bridges with the HCA of a rail. Where several do, rails take turns."""
    gpus = [name for name in devices if ":" in name]
    shared = [commonpath([devices[hca], devices[gpu]]).count("/") for gpu in gpus]
    nearest = [gpu for gpu, bridges in zip(gpus, shared, strict=True) if bridges == max(shared)]
    return nearest[number % len(nearest)] if nearest else ""


def rails_of(answer: Mapping[str, Any], required: HostRequirements) -> tuple[dict[str, Rail], str]:
    """The rails of a host by name, from the facts of VERB=look, and why there are none or too few."""
    chosen = choose_rails((Hca.model_validate(each) for each in answer["hcas"]), required)
    links = {link["name"]: link for link in answer["links"]}
    # Without an index perftest takes an IPv4 GID of RoCE v2 (its src/perftest_resources.c).
    gid = "" if required.gid_index is None else required.gid_index
    rails = {
        name: Rail(
            f"{hca.name}/{hca.port}/{gid}",
            rate_gbps(hca.rate),
            pcie_gbps(links.get(hca.name, {})),
            nearest_gpu(answer["devices"], hca.name, number),
        )
        for number, (name, hca) in enumerate(chosen.ports.items())
    }
    if len(rails) >= required.rails:
        return rails, ""
    ignored = "; ".join(f"{name}: {why}" for name, why in chosen.ignored.items())
    return rails, f"{len(rails)} of {counted(required.rails, 'rail')} found ({ignored or 'no other HCA'})"


def rounds_of(nodes: Sequence[str], places: Places) -> list[list[tuple[str, str]]]:
    """The pairs of the diagnosis, by round: no node is in two pairs of one round."""
    pairs = [group for group in plan("A", nodes, places) if len(group.nodes) == 2]
    return [
        [(group.nodes[0], group.nodes[1]) for group in some]
        for _, some in groupby(pairs, key=lambda group: group.round)
    ]


def plan_text(hosts: int, rails: int, rounds: Sequence[Sequence[tuple[str, str]]]) -> str:
    """The runs and their time."""
    pairs = counted(sum(map(len, rounds)), "pair")
    return (
        f"plan: {counted(rails, 'rail')} with 2 memories on {counted(hosts, 'host')} at once, about "
        f"{2 * rails * RUN_SECONDS} s; then {pairs} in {counted(len(rounds), 'round')}, about "
        f"{rails * RUN_SECONDS * len(rounds)} s"
    )


async def measure(
    hosts: Hosts,
    workers: Mapping[str, Host],
    required: Callable[[Host], HostRequirements],
    rounds: Sequence[Sequence[tuple[str, str]]],
    say: Callable[[str], None],
    image: str = "",
) -> Found:
    """Measure the paths of these workers: first each host alone, all at once; then pairs, round by round.

    `image`: an image with perftest for hosts of K3s that have none.
    """
    found = Found()

    async def ask(host: Host, verb: str, paths: Sequence[RailPath], **values: str) -> list[RailPath]:
        """The paths with their results; none of a server."""
        words = [f"{found.rails[host.name][path.rail].word}/{path.gpu}" for path in paths]
        values |= {"VERB": verb, "RUNS": " ".join(words), "IMAGE": image}
        answer = await hosts.run(host, SCRIPT, values, seconds=LOOK_SECONDS + len(paths) * MOST_SECONDS)
        if verb == "serve":
            return []
        return [path.after(**run) for path, run in zip(paths, answer["runs"], strict=True)]

    async def alone(host: Host) -> list[RailPath]:
        facts = await hosts.run(host, SCRIPT, {"VERB": "look"}, seconds=LOOK_SECONDS)
        rails, missing = rails_of(facts, required(host))
        found.rails[host.name] = rails
        with_gpu = {name: rail.gpu for name, rail in rails.items() if rail.gpu}
        if missing:
            found.not_run.append(f"{host.name}: {missing}")
        if len(with_gpu) < len(rails):
            found.not_run.append(f"{host.name} with GPU: nvidia-smi shows no GPU")
        paths = [RailPath(host=host.name, rail=name, memory="host") for name in rails]
        paths += [RailPath(host=host.name, rail=name, memory="gpu", gpu=to) for name, to in with_gpu.items()]
        return await ask(host, "loopback", paths) if paths else []

    async def between(server: Host, client: Host) -> list[RailPath] | str:
        common = [name for name in found.rails[client.name] if name in found.rails[server.name]]
        paths = [RailPath(host=client.name, rail=name, memory="partner", peer=server.name) for name in common]

        async def end(host: Host) -> list[RailPath]:
            return await ask(host, "serve" if host is server else "connect", paths, ADDRESS=server.address)

        served, connected = await on_each([server, client], end)
        return served if isinstance(served, str) else connected

    say(f"loopback on {counted(len(workers), 'host')}")
    for answer in await on_each(workers.values(), alone):
        found.take(answer)
    ready = {path.host for path in found.paths}
    for number, pairs in enumerate(rounds, 1):
        chosen = [pair for pair in pairs if {*pair} <= ready]
        found.not_run += [
            f"{' and '.join(pair)}: no result in loopback" for pair in pairs if pair not in chosen
        ]
        say(f"round {number} of {len(rounds)}: {counted(len(chosen), 'pair')}")
        for measured in await asyncio.gather(*(between(workers[one], workers[two]) for one, two in chosen)):
            found.take(measured)
    return found
