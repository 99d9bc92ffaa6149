"""The cables of the fabric: one host sees all of them. A design says where they belong, or most nodes do."""

from __future__ import annotations

import base64
import csv
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from stacks.accept.package.running import Planned, Running
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
COLUMNS = ("node", "hca", "switch", "port")

Rails = Mapping[str, Mapping[str, int]]
"""Node -> HCA -> port GUID."""


class End(NamedTuple):
    """An end of a cable: an HCA of a node, or the number of a port of a switch; an empty one means any."""

    at: str
    port: str

    def __str__(self) -> str:
        return f"{self.at} {'port ' * self.port.isdecimal()}{self.port}".strip()


Design = Mapping[End, End]
"""The begin of each cable -> the port of a switch, or any port of one, in which it belongs."""


class Link(NamedTuple):
    """The other end of a link, its width and speed, and the rate in Gb/s, 0 for an unknown speed."""

    end: End
    speed: str
    gbps: float


class Cable(NamedTuple):
    """One end of a cable, where the other one belongs, and where it is; None: there is no link."""

    near: End
    expected: End
    found: End | None


@dataclass
class Fabric:
    """The output of ibnetdiscover. `names`: GUID of a switch -> name. `hcas`: port GUID -> link.

    `links`: those between switches, at both of their ends.
    """

    names: dict[str, str] = field(default_factory=dict)
    hcas: dict[int, Link] = field(default_factory=dict)
    links: dict[End, Link] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Fabric:
        """The fabric in such an output. Raises ValueError where no switch is in it.

        A switch lists all of its ports, so the blocks of HCAs say nothing new.
        """
        found, switch, ports = cls(), "", list[tuple[str, re.Match[str]]]()
        for line in io.StringIO(text):
            if line.startswith("["):
                if switch and (match := _PORT.match(line)):
                    ports.append((switch, match))
            elif not line.startswith(("#", "\n", " ")):
                head = _SWITCH.match(line)
                switch = head[1] if head else ""
                if head:
                    managed = _MANAGED.fullmatch(head[2])
                    found.names[switch] = managed[1] if managed else head[2]
        if not found.names:
            raise ValueError("ibnetdiscover printed no switch")
        named = Counter(found.names.values())
        found.names = {guid: name if named[name] == 1 else guid for guid, name in found.names.items()}
        for switch, match in ports:
            port, peer, peer_port, guid, width, speed = match.groups()
            here, end = found.named(End(switch, port)), found.named(End(peer, peer_port))
            rate = (f"{width}x{speed}", int(width) * LANES.get(speed, 0))
            if peer.startswith("S-"):
                found.links[here] = Link(end, *rate)
            elif guid:
                found.hcas[int(guid, 16)] = Link(here, *rate)
        return found

    def named(self, end: End) -> End:
        """The same end by the name of its switch, which may be given by its GUID."""
        return End(self.names.get(end.at, end.at), end.port)

    def built(self, rails: Rails) -> Design:
        """Both ends of the cables of these HCAs, and of those between switches."""
        ends = {End(node, hca): guid for node, hcas in rails.items() for hca, guid in hcas.items()}
        of_hcas = {end: self.hcas[guid].end for end, guid in ends.items() if guid in self.hcas}
        return of_hcas | {end: link.end for end, link in self.links.items()}


def guid_of(text: str) -> int | None:
    """A port GUID, written as the last four groups of a GID."""
    digits = "".join(part.zfill(4) for part in text.split(":"))
    return int(digits, 16) if re.fullmatch(r"[0-9a-fA-F]{16}", digits) else None


def read_design(text: str) -> Design:
    """A design from its text. Raises ValueError, in one sentence, for any other text."""
    design, ends = dict[End, End](), set[End]()
    try:
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        if tuple(next(lines, ())) != COLUMNS:
            raise ValueError(f"its first line is not {','.join(COLUMNS)}")
        for each in filter(None, lines):
            where, (*names, port) = f"line {lines.line_num}", (value.strip() for value in each)
            are_names = len(names) == 3 and all(name and name.isprintable() for name in names)
            if not are_names or not re.fullmatch(r"[0-9]{0,3}", port):
                raise ValueError(f"{where} is not {','.join(COLUMNS)}, with a number or nothing as port")
            near, far = End(names[0], names[1].lstrip("0")), End(names[2], port.lstrip("0"))
            if {near, far} & ends:
                raise ValueError(f"{where} has an end that an earlier line has")
            design[near] = far
            ends |= {near, far} if far.port else {near}
    except csv.Error as error:
        raise ValueError(f"it is not CSV: {error}") from None
    if not design:
        raise ValueError("it has no rows")
    return design


def write_design(fabric: Fabric, rails: Rails) -> str:
    """The design of a fabric as it is built."""
    out = io.StringIO()
    made = csv.writer(out, lineterminator="\n")
    made.writerow(COLUMNS)
    for near, far in fabric.built(rails).items():
        if not near.port.isdecimal() or near < far:
            made.writerow([*near, *far])
    return out.getvalue()


def of_design(fabric: Fabric, design: Design, rails: Rails) -> tuple[list[Cable], list[Cable]]:
    """The cables of HCAs of these nodes, and those between switches."""
    built = fabric.built(rails)
    hcas, between = [], []
    for end, far in design.items():
        near = fabric.named(end)
        cable = Cable(near, fabric.named(far), built.get(near))
        if near.port.isdecimal():
            between.append(cable)
        elif near.port in rails.get(near.at, ()):
            hcas.append(cable)
    return hcas, between


def of_groups(fabric: Fabric, groups: Mapping[str, str], rails: Rails) -> tuple[list[Cable], list[str]]:
    """The cables of HCAs, expected in the leaf that most nodes of a group have; and the rails without one.

    GROUPS: node -> group.
    """
    built, cables, open_ = fabric.built(rails), list[Cable](), list[str]()
    of_rail: dict[tuple[str, str], dict[End, End | None]] = {}
    for node, hcas in rails.items():
        for hca in hcas if node in groups else ():
            of_rail.setdefault((groups[node], hca), {})[End(node, hca)] = built.get(End(node, hca))
    for (group, hca), ends in sorted(of_rail.items()):
        leaf, count = Counter(end.at if end else "" for end in ends.values()).most_common(1)[0]
        if not any(ends.values()):
            open_.append(f"the leaf of {hca} of {group}, which no node has a link to")
        elif leaf and 2 * count > len(ends):
            cables += [Cable(near, End(leaf, ""), end) for near, end in ends.items()]
        else:
            open_.append(f"{hca} of {group}")
    return cables, open_


def faults(fabric: Fabric, cables: Iterable[Cable]) -> Iterator[str]:
    """The faults of cables, as texts. Two cables, each in the place of the other one, are one fault."""
    wrong: dict[tuple[End, End], list[End]] = {}
    beside: dict[tuple[str, str], list[End]] = {}
    unseen: dict[str, list[End]] = {}
    for near, expected, found in cables:
        leaf = near.at if near.port.isdecimal() else expected.at
        if found is None and leaf not in fabric.names.values():
            # A switch without uplinks is not in the fabric, and what is plugged into it is not seen either.
            unseen.setdefault(leaf, []).append(near)
        elif found is None:
            yield f"{near} has no link, expected {expected}"
        else:
            place = found if expected.port else End(found.at, "")
            beside.setdefault((near.at, place.at), []).append(near)
            if place != expected:
                wrong.setdefault((expected, place), []).append(near)
    for leaf, cut in unseen.items():
        yield f"{leaf} is not in the fabric: it has lost its uplinks, or its {len(cut)} cables are out"
    for (expected, place), some in wrong.items():
        others = wrong.get((place, expected), [])
        for one in some:
            if others:
                # Two cables of one node are more likely than any other two.
                other = next((each for each in others if each.at == one.at), others[0])
                others.remove(other)
                yield f"{one} and {other} are swapped: {one} is in {place}, {other} in {expected}"
            else:
                same = [each for each in beside[one.at, place.at] if each != one]
                yield f"{one} is in {place}{f', as {same[0]}' if same else ''}, expected {expected}"
        some.clear()


def slow(fabric: Fabric) -> Iterator[str]:
    """The links between switches that are slower than most."""
    most = median_high([link.gbps for link in fabric.links.values()] or [0])
    for near, link in fabric.links.items():
        if link.gbps < most and near < link.end:
            about = f"{link.speed}, {link.gbps:g} Gb/s, most links between switches have {most:g}"
            yield f"{near} to {link.end}: {about}"


def few_uplinks(fabric: Fabric, leaves: set[str]) -> Iterator[str]:
    """The leaves with fewer uplinks than their peers."""
    counts = Counter(end.at for end in fabric.links)
    most = median_high([counts[leaf] for leaf in leaves] or [0])
    for leaf in sorted(leaves):
        if counts[leaf] < most:
            yield f"{leaf} has {counts[leaf]} uplinks, its peers have {most}"


def additional(fabric: Fabric, between: Iterable[Cable], leaves: set[str]) -> Iterator[str]:
    """The links between switches that the design does not have; without those, the links between leaves."""
    ends = {end for cable in between for end in (cable.near, cable.expected)}
    for near, link in fabric.links.items():
        is_known = {near, link.end} & ends if ends else not {near.at, link.end.at} <= leaves
        if near < link.end and not is_known:
            what = "is not in the design" if ends else "joins two leaves"
            yield f"the link from {near} to {link.end} {what}"


LEAVES_ONLY = "of a design without ports: cables exchanged on one leaf are not seen"
GROUPS = (
    "in the leaf that most nodes of the rail group have: cables exchanged on one leaf, nodes in each other's "
    "place and what most nodes have wrong are not seen"
)
NO_SWITCHES = "the design has no links between switches: cables exchanged between them are not seen"


def has_infiniband(pool: Pool) -> bool:
    """Whether the rails of a pool are InfiniBand."""
    return pool.required.rails > 0 and pool.required.link_layer == "infiniband"


def _hcas(reports: Mapping[str, Report]) -> Rails:
    """The port GUIDs of all HCAs that have one."""
    found: dict[str, dict[str, int]] = {node: {} for node in reports}
    for node, report in reports.items():
        for each in devices(report, "hcas"):
            name, port, guid = each.get("name", ""), each.get("port"), guid_of(each.get("guid", ""))
            if guid:
                found[node][name if port == "1" else f"{name}:{port}"] = guid
    return found


def _names(pool: Pool, reports: Mapping[str, Report]) -> list[str]:
    """The rails. An HCA is one on every node if it is one on any: its cable may be out, or narrow."""
    return sorted({hca for each in reports.values() for hca in choose_rails(each.hcas, pool.required).names})


def rails_of(pool: Pool, reports: Mapping[str, Report]) -> Rails:
    """The GUIDs of the rails of the pool's workers."""
    names = _names(pool, reports)
    return {
        node: {hca: guid for hca, guid in hcas.items() if hca in names}
        for node, hcas in _hcas(reports).items()
    }


def _seen(asked: Question) -> tuple[Fabric, Rails, list[str]]:
    """The fabric, the rails, and the nodes without a report and rails without a GUID. Raises Untrusted."""
    rails, names = rails_of(asked.pool, asked.reports), _names(asked.pool, asked.reports)
    unread = [name for name in asked.pool.workers if name not in rails]
    unread += [f"{node} {hca}" for node, hcas in rails.items() for hca in names if hca not in hcas]
    return _fabric(asked.evidence), rails, unread


def _judged(bad: list[str], open_: list[str], good: str, how: str = "") -> Finding:
    if bad:
        return Finding("fail", "; ".join(filter(None, (sentences(bad, 8), how))))
    if open_:
        return Finding("unknown", f"not known: {sentences(open_, 8)}")
    return Finding("pass", "; ".join(filter(None, (good, how))))


@lru_cache(maxsize=1)
def _fabric(evidence: Evidence) -> Fabric:
    """The fabric that ibnetdiscover has seen. Raises Untrusted."""
    try:
        return Fabric.read(
            "".join(str(each.get("text")) for each in evidence.printed("cabling").hosts.values())
        )
    except ValueError as error:
        raise Untrusted(str(error)) from None


def _design(evidence: Evidence) -> Design:
    """The design; empty without one. Raises Untrusted."""
    text = evidence.begun.options.get("cabling")
    try:
        return read_design(text) if text else {}
    except ValueError as error:
        raise Untrusted(f"the design of the cabling: {error}") from None


_row = partial(kind, required=has_infiniband, uses=("inventory",))


@_row("cabling.rails", "each rail is in its leaf and port")
def _rails(asked: Question) -> Finding:
    fabric, rails, open_ = _seen(asked)
    design, groups = _design(asked.evidence), asked.pool.rail_groups
    if design:
        cables, _ = of_design(fabric, design, _hcas(asked.reports))
        placed = {cable.near for cable in cables}
        ends = (End(node, hca) for node, hcas in rails.items() for hca in hcas)
        open_ += [f"{end} (not in the design)" for end in ends if end not in placed]
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
    fabric, rails, _ = _seen(asked)
    _, between = of_design(fabric, _design(asked.evidence), {})
    leaves = {far.at for near, far in fabric.built(rails).items() if near not in fabric.links}
    bad = [*faults(fabric, between), *few_uplinks(fabric, leaves), *additional(fabric, between, leaves)]
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
    (fabric, rails, unread), rate = _seen(asked), asked.pool.required.rate_gbps
    ends = {End(node, hca): guid for node, hcas in rails.items() for hca, guid in hcas.items()}
    links = {end: fabric.hcas[guid] for end, guid in ends.items() if guid in fabric.hcas}
    low = [
        f"{end}: {link.speed}, {link.gbps:g} Gb/s, expected {rate:g}"
        for end, link in links.items()
        if link.gbps < rate
    ]
    open_ = unread + _without_link(fabric, rails)
    return _judged([*low, *slow(fabric)], open_, f"{counted(len(links), 'rail')} at {rate:g} Gb/s")


# ibnetdiscover takes 5 s on a fabric of 440 nodes.
SECONDS = 150
# Hosts that are asked until one sees the fabric.
TRIES = 3


def discover(on: Running) -> Printed:
    """The fabric as one of the workers sees it. Raises NoVerdict where none does."""
    why = "no pool has InfiniBand"
    workers = [name for pool in on.pools.values() if has_infiniband(pool) for name in pool.workers]
    for name in workers[:TRIES]:
        found = on.on_hosts([name], "fabric", SECONDS)
        printed = found.hosts.get(name, {})
        if printed and not printed.get("error"):
            return found.model_copy(update={"hosts": {name: {**printed, "text": _text(printed)}}})
        why = found.failed.get(name) or f"{name}: {printed.get('error')}"
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
    others = [name for name, pool in on.pools.items() if not has_infiniband(pool)]
    notes = dict.fromkeys(others, "the pool has no InfiniBand")
    try:
        write_json(on.at("cabling") / PRINTED, discover(on))
    except NoVerdict as error:
        notes = dict.fromkeys(on.pools, str(error)) | notes
    return notes


def as_built(on: Running) -> str:
    """The design of the fabric as it is built. Raises NoVerdict where it cannot be seen."""
    reports = ask_workers(on).hosts
    [(host, printed)] = discover(on).hosts.items()
    try:
        fabric = Fabric.read(printed["text"])
    except ValueError as error:
        raise NoVerdict(f"{host}: {error}") from None
    rails: dict[str, Mapping[str, int]] = {}
    for pool in on.pools.values():
        if has_infiniband(pool):
            rails |= rails_of(pool, {name: reports[name] for name in pool.workers if name in reports})
    if not any(guid in fabric.hcas for hcas in rails.values() for guid in hcas.values()):
        raise NoVerdict(f"no rail of a worker is in the fabric that {host} sees")
    return write_design(fabric, rails)


STAGE = Planned("cabling", cabling, False, lambda nodes: 60, logs_in=True)
