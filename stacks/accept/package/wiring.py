"""Reads a fabric from ibnetdiscover and a design from CSV, and compares them. All functions are pure."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median_high
from typing import NamedTuple

COLUMNS = ["node", "hca", "switch", "port"]
# A fabric of 440 nodes has 1.3 MB.
MAX_TEXT = 8 << 20
# Gb/s of a lane, as sysfs counts the rate of a port.
LANES = {
    "SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200,
}  # fmt: skip
_SWITCH = re.compile(r'Switch\s+\d+ "(S-[0-9a-f]{1,16})"\s*# "(.{0,200}?)"')
_PORT = re.compile(
    r'\[(\d{1,3})\](?:\[ext \d+\])?(?:\([0-9a-f]+\))?\s+"([A-Z]-[0-9a-f]{1,16})"\[(\d{1,3})\](?:\[ext \d+\])?'
    r"(?:\(([0-9a-f]{1,16})\))?.* (\d{1,2})x([A-Z]+\d*)\s*$"
)
# The name of a managed switch is such as `MF0;leaf1:MQM9700/U1`.
_MANAGED = re.compile(r"[^;]*;([^:]+):.*")

Rails = Mapping[str, Mapping[str, int]]
"""Node -> HCA -> port GUID."""


class Place(NamedTuple):
    """A port of a switch; 0 means any."""

    switch: str
    port: int


class Link(NamedTuple):
    """The other end of a link, its width and speed, and the rate in Gb/s, 0 for an unknown speed."""

    end: Place
    speed: str
    gbps: float


@dataclass
class Fabric:
    """The output of ibnetdiscover. `names`: switch -> name. `hcas`: port GUID -> link.

    `links`: those between switches, at both of their ends.
    """

    names: dict[str, str] = field(default_factory=dict)
    hcas: dict[int, Link] = field(default_factory=dict)
    links: dict[Place, Link] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Fabric:
        """The fabric in such an output. Raises ValueError where no switch is in it.

        A switch lists all of its ports, so the blocks of HCAs say nothing new.
        """
        found, switch = cls(), ""
        for line in io.StringIO(text):
            if line.startswith("["):
                if switch and (match := _PORT.match(line)):
                    port, peer, peer_port, guid, width, speed = match.groups()
                    here, end = Place(switch, int(port)), Place(peer, int(peer_port))
                    rate = (f"{width}x{speed}", int(width) * LANES.get(speed, 0))
                    if peer.startswith("S-"):
                        found.links[here] = Link(end, *rate)
                    elif guid:
                        found.hcas[int(guid, 16)] = Link(here, *rate)
            elif not line.startswith(("#", "\n", " ")):
                head = _SWITCH.match(line)
                switch = head[1] if head else ""
                if head:
                    managed = _MANAGED.fullmatch(head[2])
                    found.names[switch] = managed[1] if managed else head[2]
        if not found.names:
            raise ValueError("ibnetdiscover printed no switch")
        named = Counter(found.names.values())
        found.names = {each: name if named[name] == 1 else each for each, name in found.names.items()}
        return found

    def show(self, place: Place) -> str:
        """A place for people."""
        name = self.names.get(place.switch, place.switch)
        return f"{name} port {place.port}" if place.port else name

    def at(self, rails: Rails, node: str, hca: str) -> Place | None:
        """The place of the cable of an HCA."""
        link = self.hcas.get(rails.get(node, {}).get(hca, -1))
        return link.end if link else None


def guid_of(text: str) -> int | None:
    """A port GUID, written as the last four groups of a GID."""
    digits = "".join(part.zfill(4) for part in text.split(":"))
    return int(digits, 16) if re.fullmatch(r"[0-9a-fA-F]{16}", digits) else None


class Row(NamedTuple):
    """A cable of a design. Of one between switches `node` is a switch, and `hca` the number of its port."""

    node: str
    hca: str
    switch: str
    port: int


def read_design(text: str) -> list[Row]:
    """The rows of a design. Raises ValueError, in one sentence, for any other text."""
    rows: list[Row] = []
    ends: set[tuple[str, str]] = set()
    try:
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        if next(lines, None) != COLUMNS:
            raise ValueError(f"its first line is not {','.join(COLUMNS)}")
        for each in filter(None, lines):
            where, (*names, port) = f"line {lines.line_num}", (value.strip() for value in each)
            if len(names) != 3 or not all(names) or not re.fullmatch(r"[0-9]{0,3}", port):
                raise ValueError(f"{where} is not {','.join(COLUMNS)}, with a number or nothing as port")
            if not all(name.isprintable() and len(name) <= 200 for name in names):
                raise ValueError(f"{where} has a name that is too long, or cannot be printed")
            row = Row(names[0], names[1], names[2], int(port or 0))
            taken = {(row.node, row.hca)} | ({(row.switch, str(row.port))} if row.port else set())
            if taken & ends:
                raise ValueError(f"{where} has an end that an earlier line has")
            ends |= taken
            rows.append(row)
    except csv.Error as error:
        raise ValueError(f"it is not CSV: {error}") from None
    if not rows:
        raise ValueError("it has no rows")
    return rows


def write_design(fabric: Fabric, rails: Rails) -> str:
    """The design of a fabric as it is built."""
    out = io.StringIO()
    made = csv.writer(out, lineterminator="\n")
    made.writerow(COLUMNS)
    for node, hcas in rails.items():
        found = ((hca, fabric.at(rails, node, hca)) for hca in hcas)
        made.writerows([node, hca, fabric.names.get(at.switch), at.port] for hca, at in found if at)
    ends = ((fabric.names.get(near.switch, ""), near.port, link.end) for near, link in fabric.links.items())
    both = sorted((name, port, fabric.names.get(far.switch, ""), far.port) for name, port, far in ends)
    made.writerows(row for row in both if row[:2] < row[2:])
    return out.getvalue()


class Cable(NamedTuple):
    """One end of a cable, where the other one belongs, and where it is; None: there is no link."""

    node: str
    port: str
    expected: Place
    found: Place | None


def _known(fabric: Fabric) -> dict[str, str]:
    """Name or GUID of a switch -> its GUID."""
    return {name: each for each, name in fabric.names.items()} | {each: each for each in fabric.names}


def of_design(fabric: Fabric, rows: Iterable[Row], rails: Rails) -> tuple[list[Cable], list[Cable]]:
    """The cables of HCAs of these nodes, and those between switches."""
    known = _known(fabric)
    hcas, between = [], []
    for node, hca, switch, port in rows:
        expected = Place(known.get(switch, switch), port)
        if hca.isdecimal():
            link = fabric.links.get(Place(known.get(node, node), int(hca)))
            between.append(Cable(node, f"port {hca}", expected, link.end if link else None))
        elif hca in rails.get(node, ()):
            hcas.append(Cable(node, hca, expected, fabric.at(rails, node, hca)))
    return hcas, between


def of_groups(fabric: Fabric, groups: Mapping[str, str], rails: Rails) -> tuple[list[Cable], list[str]]:
    """The cables of HCAs, expected in the leaf that most nodes of a group have; and the rails without one.

    GROUPS: node -> group.
    """
    cables, open_ = [], []
    hcas = sorted({hca for each in rails.values() for hca in each})
    for group in sorted({*groups.values()}):
        for hca in hcas:
            nodes = [node for node in rails if groups.get(node) == group and hca in rails[node]]
            at = {node: fabric.at(rails, node, hca) for node in nodes}
            if not at:
                continue
            leaf, count = Counter(place.switch if place else "" for place in at.values()).most_common(1)[0]
            if not any(at.values()):
                open_.append(f"the leaf of {hca} of {group}, which no node has a link to")
            elif leaf and 2 * count > len(nodes):
                cables += [Cable(node, hca, Place(leaf, 0), place) for node, place in at.items()]
            else:
                open_.append(f"{hca} of {group}")
    return cables, open_


def faults(fabric: Fabric, cables: Iterable[Cable]) -> Iterator[str]:
    """The faults of cables, as texts. Two cables, each in the place of the other one, are one fault."""
    wrong: dict[tuple[Place, Place], list[Cable]] = {}
    unseen: dict[str, list[str]] = {}
    switches = {*fabric.names, *fabric.names.values()}
    beside: dict[tuple[str, str], list[str]] = {}
    for cable in cables:
        leaf = cable.node if cable.port.startswith("port ") else cable.expected.switch
        if cable.found is None and leaf not in switches:
            # A switch without uplinks is not in the fabric, and what is plugged into it is not seen either.
            unseen.setdefault(leaf, []).append(f"{cable.node} {cable.port}")
            continue
        if cable.found is None:
            yield f"{cable.node} {cable.port} has no link, expected {fabric.show(cable.expected)}"
            continue
        found = cable.found if cable.expected.port else Place(cable.found.switch, 0)
        beside.setdefault((cable.node, found.switch), []).append(cable.port)
        if found != cable.expected:
            wrong.setdefault((cable.expected, found), []).append(cable)
    for leaf, cut in unseen.items():
        yield f"{leaf} is not in the fabric: it has lost its uplinks, or its {len(cut)} cables are out"
    for (expected, found), some in wrong.items():
        others = wrong.get((found, expected), [])
        for one in some:
            here = f"{one.node} {one.port}"
            if others:
                # Two cables of one node are more likely than any other two.
                other = next((each for each in others if each.node == one.node), others[0])
                others.remove(other)
                there = f"{other.node} {other.port}"
                at = f"{here} is in {fabric.show(found)}, {there} in {fabric.show(expected)}"
                yield f"{here} and {there} are swapped: {at}"
                continue
            same = [port for port in beside[one.node, found.switch] if port != one.port]
            also = f", as {same[0]} of the same node" if same else ""
            yield f"{here} is in {fabric.show(found)}{also}, expected {fabric.show(expected)}"
        some.clear()


def slow(fabric: Fabric) -> Iterator[str]:
    """The links between switches that are slower than most."""
    most = median_high([link.gbps for link in fabric.links.values()] or [0])
    for place, link in fabric.links.items():
        if link.gbps < most and place < link.end:
            ends = f"{fabric.show(place)} to {fabric.show(link.end)}"
            yield f"{ends}: {link.speed}, {link.gbps:g} Gb/s, most links between switches have {most:g}"


def few_uplinks(fabric: Fabric, leaves: Collection[str]) -> Iterator[str]:
    """The leaves with fewer uplinks than their peers."""
    counts = Counter(place.switch for place in fabric.links if place.switch in leaves)
    most = median_high([counts[leaf] for leaf in leaves] or [0])
    for leaf in sorted(leaves):
        if counts[leaf] < most:
            yield f"{fabric.names.get(leaf, leaf)} has {counts[leaf]} uplinks, its peers have {most}"


def additional(fabric: Fabric, rows: Iterable[Row], leaves: Collection[str]) -> Iterator[str]:
    """The links between switches that the design does not have; without those, the links between leaves."""
    known = _known(fabric)
    between = [row for row in rows if row.hca.isdecimal()]
    ends = {Place(known.get(row.node, row.node), int(row.hca)) for row in between}
    ends |= {Place(known.get(row.switch, row.switch), row.port) for row in between}
    for place, link in fabric.links.items():
        is_known = {place, link.end} & ends if between else not {place.switch, link.end.switch} <= {*leaves}
        if place < link.end and not is_known:
            what = "is not in the design" if between else "joins two leaves"
            yield f"the link from {fabric.show(place)} to {fabric.show(link.end)} {what}"
