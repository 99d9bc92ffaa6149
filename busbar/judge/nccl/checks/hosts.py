"""The facts that hosts print of themselves: the gate on their partners, and differences between hosts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from busbar.judge.checks import Status
from busbar.judge.nccl.checks.context import FIX, Check, Context, passed, release, result, unknown
from busbar.judge.nccl.expected.system import BOARD_GPUS
from busbar.judge.nccl.log.evidence import MACHINE, Evidence
from busbar.judge.nccl.log.reader import short
from busbar.judge.nccl.log.records import LogLine, Preamble, Rank
from busbar.text import listed


class Pair(NamedTuple):
    """A value as printed at a place, and the value that it must equal there; None: that is not known."""

    printed: object
    partner: object
    where: str = ""
    line: LogLine | None = None


class Row(NamedTuple):
    """A printed fact and its partner. `code` and `status`: the result of a difference.

    `at_least`: more than the partner is no difference. `is_proof`: its absence is a missing proof.
    """

    fact: str
    partner: str
    pairs: Callable[[Context], Iterable[Pair]]
    code: str
    status: Status = "fail"
    at_least: bool = False
    is_proof: Callable[[Context], bool] = lambda context: False


def _of_hosts(
    fact: str, number: str, partner: Callable[[Context], int | None] | None = None
) -> Callable[[Context], Iterator[Pair]]:
    """The NUMBER in what hosts print of FACT, beside PARTNER or the second group of NUMBER."""
    pattern = re.compile(number)

    def pairs(context: Context) -> Iterator[Pair]:
        for name, values in context.evidence.facts.items():
            for value, hosts in values.items() if name.startswith(fact) else ():
                if (found := pattern.search(value)) is not None:
                    wanted = int(found[2]) if partner is None else partner(context)
                    yield Pair(int(found[1]), wanted, listed(sorted(hosts), 3))

    return pairs


def _alike(fact: str) -> Callable[[Context], Iterator[Pair]]:
    """The values that hosts print of FACT, each beside the one that most hosts print."""

    def pairs(context: Context) -> Iterator[Pair]:
        values = sorted(context.evidence.facts.get(fact, {}).items(), key=lambda item: -len(item[1]))
        for value, hosts in values:
            yield Pair(value, values[0][0], listed(sorted(hosts), 3))

    return pairs


def _first(found: dict[str, LogLine]) -> Iterator[Pair]:
    """The values that processes print, each beside the first one."""
    for value, line in found.items():
        yield Pair(value, next(iter(found)), f"line {line.line}", line)


def _versions(context: Context) -> Iterator[Pair]:
    found = context.evidence.versions
    # PyTorch prints the release alone: 2.28.9 of 2.28.9+cuda13.0
    return _first({v: line for v, line in found.items() if not any(o.startswith(f"{v}+") for o in found)})


def networks(evidence: Evidence) -> dict[str, LogLine]:
    """The networks that processes name, and those of edges."""
    return {**evidence.networks, **{e.transport.name: e.first for e in evidence.net_edges.values()}}


def _libraries(context: Context) -> Iterator[Pair]:
    """The library that nccl-tests loaded, 22902, beside the versions that NCCL prints: 2.29.2."""
    versions = (release(version) for version in context.evidence.versions)
    printed = [v[0] * 10_000 + v[1] * 100 + v[2] for v in versions if len(v) == 3]
    for run in context.judged:
        library = run.preamble.library or 0
        if library >= 10_000 and printed:
            yield Pair(library, library if library in printed else printed[0], f"line {run.line}")


def _tables(
    printed: Callable[[Preamble], object], asked: Callable[[Preamble], int | None]
) -> Callable[[Context], Iterator[Pair]]:
    """A number of each table beside the one for which the command before it ASKED."""

    def pairs(context: Context) -> Iterator[Pair]:
        for run in context.judged:
            if number := printed(run.preamble):
                yield Pair(number, asked(run.preamble), f"line {run.line}")

    return pairs


def _asked_ranks(preamble: Preamble) -> int | None:
    each = preamble.banner.ranks_per_process if preamble.banner is not None else None
    return (preamble.asked.processes or 0) * (each or 0) or None


def _gpus(context: Context) -> Iterator[Pair]:
    """The names of the GPUs of each host, each beside the first one of its host."""
    first: dict[str, str] = {}
    for rank in context.listed:
        yield Pair(rank.gpu, first.setdefault(rank.host, rank.gpu), rank.host, rank.at)


def _members(context: Context) -> int | None:
    # NCCL prints them if it fuses NICs itself; a plugin that does prints none
    want = context.expectation
    return (want.rails or 0) // want.net_devices if want.net_devices else None


def _indirect(context: Context) -> Iterator[Pair]:
    """GPUs behind an NVSwitch that reach each other over a third one."""
    system = context.expectation.system
    hosts = [host for host, edges in context.evidence.inside.items() if "P2P/indirect" in edges]
    if hosts and system is not None and system.reduces_in_nvswitch:
        yield Pair("P2P/indirect", "P2P", listed(sorted(hosts), 3))


OTHERS, COMMAND = "on the other hosts", "as the command asked"
# printed fact, partner, both as printed, code of a difference; facts that are not here only make remarks
TABLE = (
    Row("NICs that libfabric found", "expected rails",
        _of_hosts("libfabric provider", r"found (\d+) nics", lambda c: c.expectation.rails),
        "agreement.nics_missing", at_least=True),
    Row("rails of a device", "originally found",
        _of_hosts("rails of a device", r"(\d+) rails \(originally found (\d+)"), "agreement.rails_missing"),
    Row("members of a fused NIC", "expected", _of_hosts("NET device", r"ndevs=(\d+)", _members),
        "agreement.members_missing", at_least=True,
        is_proof=lambda c: bool(_members(c)) and "IB" in c.evidence.network_names),
    Row("NVLink clique", "ranks of the domain",
        _of_hosts("NVLink clique", r"(\d+)", lambda c: c.ranks and c.domains and c.ranks // c.domains),
        "agreement.clique_split", at_least=True),
    Row("edges inside a host", "behind an NVSwitch", _indirect, "agreement.indirect"),
    Row("local Net devices", OTHERS, _alike("local Net devices"), "agreement.differs"),
    Row("libfabric provider", OTHERS, _alike("libfabric provider"), "agreement.differs"),
    Row("transport protocol", OTHERS, _alike("transport protocol"), "agreement.differs"),
    Row("NCCL git version", OTHERS, _alike("NCCL git version"), "agreement.differs"),
    Row("NCCL version", OTHERS, _versions, "agreement.differs"),
    Row("network", OTHERS, lambda c: _first(networks(c.evidence)), "agreement.differs"),
    Row("plugin path", OTHERS, lambda c: _first(c.evidence.plugin_paths), "agreement.differs"),
    Row("topology", OTHERS, _alike("topology"), "agreement.differs", "unknown"),
    Row("GPU", "on the same host", _gpus, "agreement.mixed_gpus", "unknown"),
    Row("nccl-library of nccl-tests", "NCCL version", _libraries, "agreement.other_library", "unknown"),
    Row("ranks", COMMAND, _tables(lambda p: len(p.ranks), _asked_ranks), "agreement.other_ranks"),
    Row("hosts", COMMAND, _tables(lambda p: len(p.hosts), lambda p: p.asked.nodes), "agreement.other_hosts"),
    Row("smallest message", COMMAND,
        _tables(lambda p: p.banner and p.banner.min_bytes, lambda p: p.asked.low), "agreement.other_sizes"),
    Row("largest message", COMMAND,
        _tables(lambda p: p.banner and p.banner.max_bytes, lambda p: p.asked.high), "agreement.other_sizes"),
)  # fmt: skip
SAME = tuple(row.fact for row in TABLE if row.partner == OTHERS)


def agreement(context: Context) -> Check:
    """Check that printed facts equal their partners in TABLE."""
    found = [check for row in TABLE if (check := _compare(row, context)) is not None]
    equal = passed("agreement.as_expected", "no printed fact contradicts another or the expectation")
    return min(found, key=lambda check: check.status != "fail", default=equal)


def _compare(row: Row, context: Context) -> Check | None:
    """The first difference in a row of the table; None without one."""
    pairs = list(row.pairs(context))
    for pair in pairs:
        one, other = pair.printed, pair.partner
        is_more = isinstance(one, int) and isinstance(other, int) and one > other
        if other is None or one == other or (row.at_least and is_more):
            continue
        where = f" ({pair.where})" if pair.where else ""
        reason = f"{row.fact}: {one}{where}, {row.partner}: {other}"
        return result(row.status, row.code, reason, pair.line)
    if not pairs and row.is_proof(context):
        reason = f"{row.fact}: not printed, {row.partner}: not proved"
        return unknown("agreement.not_printed", reason, fix=FIX)
    return None


MOST = 100
OF_ONE_HOST = (MACHINE, "NCCL_HOSTID", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE")  # of one host or rank
ON_EACH = ("DMA-BUF",)  # printed where it is there, so that silence says something


def differences(context: Context) -> list[str]:
    """The facts that the hosts print differently: `NCCL_IB_TC: 0 on worker-1; 106 on worker-0, worker-2`."""
    evidence = context.log.evidence
    facts: dict[str, dict[str, set[str]]] = {}  # name -> host -> values
    ranks = context.listed
    for rank in ranks if all(r.gpu for r in ranks) else ():
        facts.setdefault("GPU", {}).setdefault(short(rank.host), set()).add(rank.gpu)
    for host, labels in evidence.inside.items():
        facts.setdefault("edges inside a host", {})[short(host)] = labels
    for name, of_value in evidence.facts.items():
        for value, hosts in of_value.items():
            for host in hosts - {""}:
                facts.setdefault(name, {}).setdefault(short(host), set()).add(value)
    speaking = {host for name, of_host in facts.items() if name.startswith("NCCL_") for host in of_host}
    found: dict[str, list[str]] = {}  # how hosts differ -> in which facts
    for name, of_host in facts.items():
        if sum(map(len, found.values())) >= MOST:
            break
        each = evidence.hosts if name in ON_EACH else speaking if name.startswith("NCCL_") else set()
        groups: dict[str, list[str]] = {}
        for host, values in sorted(of_host.items()):
            groups.setdefault(" and ".join(sorted(values)), []).append(host)
        if silent := sorted(set(map(short, each)) - of_host.keys()) if context.is_whole else []:
            groups["not printed"] = silent
        if len(groups) > 1 and name not in (*OF_ONE_HOST, *SAME):
            rarest = sorted(groups.items(), key=lambda group: len(group[1]))
            how = "; ".join(f"{value} on {listed(hosts, 3)}" for value, hosts in rarest)
            found.setdefault(how, []).append(name)
    return [*(f"{listed(names)}: {how}" for how, names in found.items()), *_two_halves(ranks)]


def _two_halves(ranks: list[Rank]) -> Iterator[str]:
    """Two hosts whose GPUs may be the two halves of one board."""
    buses: dict[str, set[str]] = {}
    for rank in ranks:
        buses.setdefault(rank.host, set()).add(rank.bus)
    if len(buses) == 2 and all(1 < len(each) <= BOARD_GPUS // 2 for each in buses.values()):
        (one, first), (two, second) = buses.items()
        if not first & second:
            yield f"PCI addresses of GPUs: {one} and {two} share none, as two pods of one machine would"


def on_one_machine(context: Context) -> str | None:
    """Two hosts of the device lists that the log shows as pods of one machine."""
    for node, pods in context.log.evidence.facts.get(MACHINE, {}).items():
        both = sorted(context.hosts & set(map(short, pods)))
        if len(both) > 1:
            return f"{both[0]} and {both[1]} are pods of one machine ({node})"
    return None


def carrying(evidence: Evidence, host: str) -> list[tuple[str, float | None]]:
    """The HCAs that carry edges of HOST, of fused ones the members, and their Gb/s where it is printed.

    One without a printed name counts as well.
    """
    names = {device: name for device, name, _ in evidence.hca_links.get(host, ())}
    found: list[tuple[str, float | None]] = []
    for device in sorted(evidence.rails.get(host) or evidence.rails.get("") or ()):
        made = min(evidence.says(host, f"NET device {device}"), default="").split()
        name, speed, members = made or (names.get(device, ""), "speed=0", "ndevs=1")
        number = max(1, int(members.removeprefix("ndevs=")))
        whole = float(speed.removeprefix("speed=")) / 1000
        for member in (name.replace("_dma", "").split("+") + [""] * number)[:number]:
            printed = [float(s) / 1000 for s in evidence.says(host, f"speed of {member}")]
            found.append((member, max(printed, default=whole / number) or None))
    return found
