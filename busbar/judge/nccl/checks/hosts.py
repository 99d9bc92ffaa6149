"""The facts that hosts print of themselves: the gate on their partners, and differences between hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from busbar.judge.nccl.checks.context import Check, Context, failed, passed, unknown
from busbar.judge.nccl.expected.system import BOARD_GPUS
from busbar.judge.nccl.log.evidence import MACHINE, Evidence
from busbar.judge.nccl.log.reader import short
from busbar.judge.nccl.log.records import Rank
from busbar.text import listed

# facts that are the same on all hosts and ranks; others that differ are remarks
SAME = ("NCCL git version", "libfabric provider", "transport protocol", "local Net devices")
FOUND = re.compile(r"\(found (\d+) nics\)")
ORIGINALLY = re.compile(r"(\d+) rails \(originally found (\d+) rails\)")


def agreement(context: Context) -> Check:
    """Check that printed facts equal what is expected, what others print, and what was found originally."""
    for code, reason in _wrong(context):
        return failed(code, reason)
    for fact in SAME:
        values = context.evidence.facts.get(fact, {})
        if len(values) > 1:
            each = "; ".join(f"{value} on {listed(sorted(hosts), 3)}" for value, hosts in values.items())
            return failed("agreement.differs", f"{fact}: {each}")
    for run in context.judged:
        asked, banner, listed_ranks = run.preamble.asked, run.preamble.banner, len(run.preamble.ranks)
        per_process = banner.ranks_per_process if banner is not None else None
        whole = (asked or 0) * (per_process or 0)
        if whole and listed_ranks and whole != listed_ranks:
            reason = f"the command asked for {whole} ranks, and {listed_ranks} took part"
            return failed("agreement.other_ranks", reason)
    if (other := _other_library(context)) is not None:
        return unknown("agreement.other_library", other)
    return passed("agreement.as_expected", "no printed fact contradicts another or the expectation")


def _wrong(context: Context) -> Iterator[tuple[str, str]]:
    """Code and reason of each count that is not the expected one."""
    facts, rails = context.evidence.facts, context.expectation.rails
    for value, hosts in facts.get("libfabric provider", {}).items():
        found = FOUND.search(value)
        if found is not None and rails is not None and int(found[1]) < rails:
            where = listed(sorted(hosts), 3)
            yield "agreement.nics_missing", f"libfabric found {found[1]} NICs on {where}, expected {rails}"
    for value, hosts in facts.get("rails of a device", {}).items():
        counts = ORIGINALLY.search(value)
        if counts is not None and counts[1] != counts[2]:
            yield "agreement.rails_missing", f"a network device has {value} on {listed(sorted(hosts), 3)}"
    domain = context.ranks // context.domains if context.ranks and context.domains else None
    for value, hosts in facts.get("NVLink clique", {}).items():
        if domain is not None and int(value) < domain:
            where = listed(sorted(hosts), 3)
            yield "agreement.clique_split", f"{value} GPUs are in one clique on {where}, expected {domain}"

    indirect = {host for host, edges in context.evidence.inside.items() if "P2P/indirect" in edges}
    system = context.expectation.system
    if indirect and system is not None and system.reduces_in_nvswitch:
        where = listed(sorted(indirect), 3)
        yield "agreement.indirect", f"GPUs on {where} reach each other over a third one, behind an NVSwitch"


def _other_library(context: Context) -> str | None:
    """The library that the program loaded, if NCCL prints another version."""
    printed = {number: version for version in context.evidence.versions for number in _numbers(version)}
    for run in context.judged:
        library = run.preamble.library
        if library is not None and library >= 10_000 and printed and library not in printed:
            return f"nccl-tests loaded NCCL {library}, and NCCL prints {listed(sorted(printed.values()))}"
    return None


def _numbers(version: str) -> Iterator[int]:
    """VERSION as NCCL's number: 2.29.2 is 22902."""
    parts = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if parts is not None:
        yield int(parts[1]) * 10_000 + int(parts[2]) * 100 + int(parts[3])


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
        for member in (name.split("+") + [""] * number)[:number]:
            printed = [float(s) / 1000 for s in evidence.says(host, f"speed of {member}")]
            found.append((member, max(printed, default=whole / number) or None))
    return found
