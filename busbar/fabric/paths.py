"""Each path of a host's rails on its own, by host/paths.sh: HCA and memory in loopback, then HCA and partner.

A path is compared with a floor, and with the median of the same path on all hosts. perftest takes the smaller
MTU of both ends and P_Key 0, so it sees neither; preflight compares them.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
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
# Seconds of a run as a rule, and at most (host/paths.sh).
RUN_SECONDS, MOST_SECONDS = 6, 35
LOOK_SECONDS = 60
# Gb/s of GPU memory in loopback by the rate of the link (Azure/azurehpc-health-checks, pull request 38).
FLOORS = {200.0: 180.0, 400.0: 380.0}
PART_OF_LIMIT = PART_OF_MEDIAN = 0.9
# A median of fewer hosts may be that of a slow one.
FEWEST_FOR_A_MEDIAN = 3
# From 8 GT/s on, PCIe sends 128 bits of data as 130 bits; before, 8 as 10.
PCIE_ENCODING, OLD_PCIE_ENCODING = 128 / 130, 8 / 10

PCIE = "PCIe of the HCA: look at its width, speed, slot and MaxReadReq (lspci -vv)"
GPU_TO_HCA = (
    "the way between GPU and HCA: look at ACS and the IOMMU of the host, at ATS in a virtual machine, and "
    "whether both are below one switch (nvidia-smi topo -m)"
)
REFUSED = "GPUDirect RDMA: load nvidia-peermem, or use the open kernel modules with DMA-BUF"
BETWEEN = "cable, switch or rate: look at the ports of both ends (ibqueryerrors, iblinkinfo)"
_BUILD = "build perftest with CUDA (docs/localise.md)"
# What perftest prints -> the fix.
FIXES = {
    "Invalid Command or flag": _BUILD,
    "Unsupported memory type": _BUILD,
    "Failed to load CUDA": f"install the driver's libcuda.so.1, or {_BUILD}",
    "Couldn't listen to port": "end the program of this host that has this TCP port",
    "Couldn't connect to": "open this TCP port between the hosts",
}
_REFUSALS = ("Couldn't allocate MR", "DMA-BUF is not supported")
_SILENT = "timed out"

Memory = Literal["host", "gpu", "partner"]


class Path(StrictModel):
    """The result of one path of a host. `gbps` is None where `why` says what is missing. `peer`: partner."""

    rail: str
    memory: Memory
    gpu: str
    gbps: float | None
    why: str
    host: str = ""
    peer: str = ""

    def __str__(self) -> str:
        to = {"host": "host memory", "gpu": f"GPU {self.gpu}".rstrip(), "partner": self.peer}[self.memory]
        return f"{self.host} {self.rail} with {to}"

    @property
    def result(self) -> str:
        """The bandwidth, or the reason why there is none."""
        return self.why if self.gbps is None else f"{self.gbps:g} Gb/s"

    @property
    def is_silent(self) -> bool:
        """Whether perftest started and did not end."""
        return self.why.startswith(_SILENT)

    @property
    def is_refused(self) -> bool:
        """Whether the HCA cannot use the memory of the GPU."""
        return self.memory == "gpu" and self.why.startswith(_REFUSALS)


@dataclass(frozen=True)
class Rail:
    """A rail of a host: the word of host/paths.sh, the rate of its link, and what its PCIe link carries."""

    word: str
    link_gbps: float
    pcie_gbps: float | None

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
    paths: list[Path] = field(default_factory=list)
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

    def _is_slow(self, path: Path, median: float) -> bool:
        if path.gbps is None:
            return path.is_silent or path.is_refused
        return path.gbps < max(self.rails[path.host][path.rail].floor, PART_OF_MEDIAN * median)

    def _medians(self) -> dict[tuple[str, str], float]:
        """The median of each path, by rail and memory, over all hosts; 0 where few hosts have one."""
        same: dict[tuple[str, str], list[float]] = defaultdict(list)
        for path in self.paths:
            same[path.rail, path.memory] += [] if path.gbps is None else [path.gbps]
        return {
            key: statistics.median(each) if len(each) >= FEWEST_FOR_A_MEDIAN else 0.0
            for key, each in same.items()
        }

    def take(self, host: str, answer: Sequence[Mapping[str, Any]] | str, peer: str = "") -> None:
        """Keep the results of a host, or the reason why there are none."""
        if isinstance(answer, str):
            self.not_run.append(answer)
            return
        for each in answer:
            path = Path.model_validate({**each, "host": host, "peer": peer})
            if path.gbps is not None or path.is_silent or path.is_refused:
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
    encoding = PCIE_ENCODING if float(speed) >= 8 else OLD_PCIE_ENCODING
    return round(float(speed) * int(width) * encoding, 1)


def rails_of(answer: Mapping[str, Any], required: HostRequirements) -> tuple[dict[str, Rail], str]:
    """The rails of a host by name, from the facts of VERB=look, and why there are none or too few."""
    chosen = choose_rails((Hca.model_validate(each) for each in answer["hcas"]), required)
    links = {link["name"]: link for link in answer["links"]}
    rails = {}
    for name, hca in chosen.ports.items():
        word = f"{hca.name}/{hca.port}"
        # Without an index perftest takes an IPv4 GID of RoCE v2 (its src/perftest_resources.c).
        if required.gid_index is not None:
            word += f"/{required.gid_index}"
        rails[name] = Rail(word, rate_gbps(hca.rate), pcie_gbps(links.get(hca.name, {})))
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

    async def ask(host: Host, verb: str, rails: Sequence[Rail] = (), **values: str) -> dict[str, Any]:
        seconds = LOOK_SECONDS + (2 if verb == "loopback" else 1) * len(rails) * MOST_SECONDS
        values |= {"VERB": verb, "RAILS": " ".join(rail.word for rail in rails), "IMAGE": image}
        return await hosts.run(host, SCRIPT, values, seconds=seconds)

    async def alone(host: Host) -> list[dict[str, Any]]:
        rails, missing = rails_of(await ask(host, "look"), required(host))
        found.rails[host.name] = rails
        if missing:
            found.not_run.append(f"{host.name}: {missing}")
        return (await ask(host, "loopback", [*rails.values()]))["paths"] if rails else []

    async def between(server: Host, client: Host) -> list[dict[str, Any]] | str:
        common = found.rails[client.name].keys() & found.rails[server.name].keys()

        async def end(host: Host) -> dict[str, Any]:
            rails = [rail for name, rail in found.rails[host.name].items() if name in common]
            if host is server:
                return await ask(host, "serve", rails)
            return await ask(host, "connect", rails, ADDRESS=server.address)

        served, connected = await on_each([server, client], end)
        if isinstance(served, str):
            return served
        return connected if isinstance(connected, str) else connected["paths"]

    say(f"loopback on {counted(len(workers), 'host')}")
    for name, answer in zip(workers, await on_each(workers.values(), alone), strict=True):
        found.take(name, answer)
    ready = {path.host for path in found.paths}
    for number, pairs in enumerate(rounds, 1):
        chosen = [pair for pair in pairs if {*pair} <= ready]
        found.not_run += [
            f"{' and '.join(pair)}: no result in loopback" for pair in pairs if pair not in chosen
        ]
        say(f"round {number} of {len(rounds)}: {counted(len(chosen), 'pair')}")
        measured = await asyncio.gather(*(between(workers[one], workers[other]) for one, other in chosen))
        for (server, client), answer in zip(chosen, measured, strict=True):
            found.take(client, answer, server)
    return found
