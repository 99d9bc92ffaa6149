"""Compares the facts that hosts print: differences, HCAs that carry data, and pods that share a machine."""

from __future__ import annotations

from collections.abc import Iterator

from busbar.judge.nccl.checks.agreement import SAME
from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.expected.system import BOARD_GPUS
from busbar.judge.nccl.log.binding import short
from busbar.judge.nccl.log.evidence import MACHINE, Evidence
from busbar.judge.nccl.log.records import Rank
from busbar.text import listed

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
