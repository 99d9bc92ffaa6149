"""The cables of the fabric: one host sees all of them. A design says where they belong, or most nodes do."""

from __future__ import annotations

import base64
import csv
import io
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from statistics import median_high
from typing import NamedTuple

from busbar.exits import NoVerdict
from busbar.preflight.network_checks import choose_rails
from busbar.preflight.report import Report
from busbar.text import counted, listed
from stacks.accept.package.evidence import PRINTED, Evidence, Printed, Untrusted, write_json
from stacks.accept.package.kinds import Finding, Question, kind, sentences
from stacks.accept.package.running import QUARANTINED, Planned, Running, measure_on
from stacks.accept.package.site import Pool
from stacks.accept.package.subjects.inventory import ask_workers, devices, expected_rate

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

    @property
    def guids(self) -> dict[str, str]:
        """Name of a switch -> its GUID."""
        return {name: each for each, name in self.names.items()}

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


COLUMNS = Row._fields


def read_design(text: str) -> list[Row]:
    """The rows of a design. Raises ValueError, in one sentence, for any other text."""
    rows: list[Row] = []
    ends: set[tuple[str, str]] = set()
    try:
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        if tuple(next(lines, ())) != COLUMNS:
            raise ValueError(f"its first line is not {','.join(COLUMNS)}")
        for each in filter(None, lines):
            where, (*names, port) = f"line {lines.line_num}", (value.strip() for value in each)
            are_names = len(names) == 3 and all(name and name.isprintable() for name in names)
            if not are_names or not re.fullmatch(r"[0-9]{0,3}", port):
                raise ValueError(f"{where} is not {','.join(COLUMNS)}, with a number or nothing as port")
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


def of_design(fabric: Fabric, rows: Iterable[Row], rails: Rails) -> tuple[list[Cable], list[Cable]]:
    """The cables of HCAs of these nodes, and those between switches."""
    known = fabric.guids
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
    known = fabric.guids
    between = [row for row in rows if row.hca.isdecimal()]
    ends = {Place(known.get(row.node, row.node), int(row.hca)) for row in between}
    ends |= {Place(known.get(row.switch, row.switch), row.port) for row in between}
    for place, link in fabric.links.items():
        is_known = {place, link.end} & ends if between else not {place.switch, link.end.switch} <= {*leaves}
        if place < link.end and not is_known:
            what = "is not in the design" if between else "joins two leaves"
            yield f"the link from {fabric.show(place)} to {fabric.show(link.end)} {what}"


LEAVES_ONLY = "of a design without ports: cables exchanged on one leaf are not seen"
GROUPS = (
    "in the leaf that most nodes of the rail group have: cables exchanged on one leaf, nodes in each other's "
    "place and what most nodes have wrong are not seen"
)
NO_SWITCHES = "the design has no links between switches: cables exchanged between them are not seen"


def has_infiniband(pool: Pool) -> bool:
    """Whether the rails of a pool are InfiniBand."""
    return pool.required.rails > 0 and pool.required.link_layer == "infiniband"


def _hcas(report: Report) -> dict[str, int]:
    """HCA -> port GUID, of all that have one."""
    found: dict[str, int] = {}
    for each in devices(report, "hcas"):
        guid = guid_of(each.get("guid", ""))
        name, port = each.get("name", ""), each.get("port")
        found |= {name if port == "1" else f"{name}:{port}": guid} if guid else {}
    return found


def _names(pool: Pool, reports: Mapping[str, Report]) -> set[str]:
    """The rails. An HCA is one on every node if it is one on any: its cable may be out, or narrow."""
    mine = (reports[name] for name in pool.workers if name in reports)
    return {hca for report in mine for hca in choose_rails(report.hcas, pool.required).names}


def rails_of(pool: Pool, reports: Mapping[str, Report]) -> Rails:
    """The GUIDs of the rails."""
    names = _names(pool, reports)
    every = {node: _hcas(reports[node]) for node in pool.workers if node in reports}
    return {node: {hca: guid for hca, guid in hcas.items() if hca in names} for node, hcas in every.items()}


def _unread(asked: Question, rails: Rails) -> list[str]:
    """The nodes without a report, and the rails without a GUID."""
    names = sorted(_names(asked.pool, asked.reports))
    silent = [name for name in asked.pool.workers if name not in rails]
    return silent + [f"{node} {hca}" for node, hcas in rails.items() for hca in names if hca not in hcas]


def _judged(bad: list[str], open_: list[str], good: str, how: str = "") -> Finding:
    if bad:
        return Finding("fail", "; ".join(filter(None, (sentences(bad, 8), how))))
    if open_:
        return Finding("unknown", f"not known: {sentences(open_, 8)}")
    return Finding("pass", "; ".join(filter(None, (good, how))))


@lru_cache(maxsize=1)
def _fabric(evidence: Evidence) -> Fabric:
    """The fabric that ibnetdiscover has seen. Raises Untrusted."""
    printed = evidence.printed("cabling")
    hosts = printed.hosts.values() if printed else ()
    try:
        return Fabric.read("".join(str(each.get("text")) for each in hosts))
    except ValueError as error:
        raise Untrusted(str(error)) from None


def _design(evidence: Evidence) -> list[Row]:
    """The rows of the design; none without one. Raises Untrusted."""
    text = evidence.begun.options.get("cabling")
    try:
        return read_design(text) if text else []
    except ValueError as error:
        raise Untrusted(f"the design of the cabling: {error}") from None


_row = partial(kind, required=has_infiniband, uses=("inventory",))


@_row("cabling.rails", "each rail is in its leaf and port")
def _rails(asked: Question) -> Finding:
    fabric, rows, groups = _fabric(asked.evidence), _design(asked.evidence), asked.pool.rail_groups
    rails = rails_of(asked.pool, asked.reports)
    open_ = _unread(asked, rails)
    if rows:
        cables, _ = of_design(fabric, rows, {node: _hcas(report) for node, report in asked.reports.items()})
        placed = {cable[:2] for cable in cables}
        lacking = [f"{node} {hca}" for node in rails for hca in rails[node] if (node, hca) not in placed]
        open_ += [f"{rail} (not in the design)" for rail in lacking]
        how = "as designed" if all(cable.expected.port for cable in cables) else LEAVES_ONLY
    elif groups:
        cables, without = of_groups(fabric, groups, rails)
        open_ += without + [f"{node} (no rail group)" for node in rails if node not in groups]
        how = GROUPS
    else:
        return Finding("not run", "there is no design (--cabling FILE) and no topology.rail_group")
    return _judged([*faults(fabric, cables)], open_, counted(len(cables), "cable"), how)


@_row("cabling.uplinks", "no link between switches is missing or swapped")
def _uplinks(asked: Question) -> Finding:
    fabric, rows = _fabric(asked.evidence), _design(asked.evidence)
    rails = rails_of(asked.pool, asked.reports)
    _, between = of_design(fabric, rows, {})
    ends = [fabric.at(rails, node, hca) for node in rails for hca in rails[node]]
    leaves = {place.switch for place in ends if place}
    bad = [*faults(fabric, between), *few_uplinks(fabric, leaves), *additional(fabric, rows, leaves)]
    good = f"{counted(len(fabric.links) // 2, 'link')} between switches"
    return _judged(bad, _without_link(fabric, rails), good, "" if between else NO_SWITCHES)


def _without_link(fabric: Fabric, rails: Rails) -> list[str]:
    """The rails that have no link in the fabric: nothing is known of their leaf, and of its uplinks."""
    out: dict[str, list[str]] = {}
    for node, hcas in rails.items():
        for hca, guid in hcas.items():
            if guid not in fabric.hcas:
                out.setdefault(hca, []).append(node)
    found = [
        f"the leaf of {hca}, which no node has a link to" if len(nodes) == len(rails) > 1
        else f"{hca} of {listed(nodes)}, without a link"
        for hca, nodes in out.items()
    ]  # fmt: skip
    return found if any(rails.values()) else ["the leaf of any rail"]


@_row("cabling.speed", "no link is below its width or rate", expects=expected_rate)
def _speed(asked: Question) -> Finding:
    fabric, rate = _fabric(asked.evidence), asked.pool.required.rate_gbps
    rails = rails_of(asked.pool, asked.reports)
    every = {f"{node} {hca}": fabric.hcas.get(guid) for node in rails for hca, guid in rails[node].items()}
    links = {name: link for name, link in every.items() if link}
    low = {name: link for name, link in links.items() if link.gbps < rate}
    bad = [f"{name}: {link.speed}, {link.gbps:g} Gb/s, expected {rate:g}" for name, link in low.items()]
    open_ = _unread(asked, rails) + _without_link(fabric, rails)
    return _judged([*bad, *slow(fabric)], open_, f"{counted(len(links), 'rail')} at {rate:g} Gb/s")


# ibnetdiscover takes 5 s on a fabric of 440 nodes.
SECONDS = 150
# Hosts that are asked until one sees the fabric.
TRIES = 3


def discover(on: Running) -> Printed:
    """The fabric as one of the workers sees it. Raises NoVerdict where none does."""
    pools = [pool for pool in on.site.pools.values() if has_infiniband(pool)]
    if not pools:
        raise NoVerdict("no pool has InfiniBand")
    why = QUARANTINED
    for name in [name for pool in pools for name in pool.workers][:TRIES]:
        found = measure_on(on, [name], "fabric", SECONDS)
        printed = found.hosts.get(name, {})
        why = found.failed.get(name) or f"{name}: {printed.get('error')}"
        if not found.failed and not printed.get("error"):
            return found.model_copy(update={"hosts": {name: {**printed, "text": _text(printed)}}})
    raise NoVerdict(why)


def _text(printed: dict[str, object]) -> str:
    """The text, in bounded memory."""
    try:
        data = base64.b64decode(str(printed.get("text")), validate=True)
        text = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, MAX_TEXT + 1)
    except (ValueError, zlib.error) as error:
        raise NoVerdict(f"the output of ibnetdiscover cannot be unpacked: {error}") from None
    if len(text) > MAX_TEXT:
        raise NoVerdict(f"ibnetdiscover printed more than {MAX_TEXT >> 20} MiB")
    return text.decode(errors="replace")


def cabling(on: Running) -> dict[str, str]:
    """Keep the fabric. Where it cannot be seen, no pool has a result."""
    others = [name for name, pool in on.site.pools.items() if not has_infiniband(pool)]
    notes = dict.fromkeys(others, "the pool has no InfiniBand")
    try:
        write_json(on.at("cabling") / PRINTED, discover(on))
    except NoVerdict as error:
        notes = dict.fromkeys(on.site.pools, str(error)) | notes
    return notes


def as_built(on: Running) -> str:
    """The design of the fabric as it is built. Raises NoVerdict where it cannot be seen."""
    reports = ask_workers(on).hosts
    [(host, printed)] = discover(on).hosts.items()
    try:
        fabric = Fabric.read(printed["text"])
    except ValueError as error:
        raise NoVerdict(f"{host}: {error}") from None
    pools = [pool for pool in on.site.pools.values() if has_infiniband(pool)]
    rails = {node: hcas for pool in pools for node, hcas in rails_of(pool, reports).items()}
    if not any(guid in fabric.hcas for hcas in rails.values() for guid in hcas.values()):
        raise NoVerdict(f"no rail of a worker is in the fabric that {host} sees")
    return write_design(fabric, rails)


STAGE = Planned("cabling", cabling, False, lambda nodes: 60, logs_in=True)
