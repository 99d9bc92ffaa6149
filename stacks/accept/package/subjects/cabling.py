"""The cables of the fabric: one host sees all of them. A design says where they belong, or most nodes do."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import median_high
from typing import NamedTuple

from busbar.exits import Misuse, NoVerdict
from busbar.preflight.network_checks import choose_rails
from busbar.text import counted, listed
from stacks.accept.package.evidence import PRINTED, Evidence, Printed, Told, Untrusted, unpacked, write_json
from stacks.accept.package.kinds import Finding, Question, kind
from stacks.accept.package.running import Planned, Running
from stacks.accept.package.site import Pool
from stacks.accept.package.subjects.inventory import ask_workers, expected_rate

# A fabric of 440 nodes has 1.3 MB.
MAX_TEXT = 8 << 20
# Gb/s of a lane, as sysfs counts the rate of a port.
LANES = {
    "SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200,
}  # fmt: skip
_SWITCH = re.compile(r'^Switch\s+\d+ "(S-[0-9a-f]{1,16})"\s*# "(.{0,200}?)"', re.MULTILINE)
_PORT = re.compile(
    r'^\[(\d{1,3})\](?:\[ext \d+\])?(?:\([0-9a-f]+\))?\s+"([A-Z]-[0-9a-f]{1,16})"'
    r"\[(\d{1,3})\](?:\[ext \d+\])?(?:\(([0-9a-f]{1,16})\))?.* (\d{1,2})x([A-Z]+\d*)\s*$",
    re.MULTILINE,
)
# The name of a managed switch is such as `MF0;leaf1:MQM9700/U1`.
_MANAGED = re.compile(r"[^;]*;([^:]+):.*")
COLUMNS = ("node", "hca", "switch", "port")


class End(NamedTuple):
    """An end of a cable: an HCA of a node, or the number of a port of a switch; an empty one means any."""

    at: str
    port: str

    def __str__(self) -> str:
        return f"{self.at} {'port ' * self.is_switch}{self.port}".strip()

    @property
    def is_switch(self) -> bool:
        """HCAs have names."""
        return self.port.isdecimal()


Hcas = Mapping[End, int]
"""The port GUIDs of HCAs."""
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


@dataclass(frozen=True)
class Fabric:
    """The output of ibnetdiscover. `names`: by GUID. `links`: by HCA. `between`: switches, by both ends."""

    names: Mapping[str, str]
    links: Mapping[End, Link]
    between: Mapping[End, Link]

    @classmethod
    def read(cls, text: str, hcas: Hcas) -> Fabric:
        """The fabric in such an output, with the links of these HCAs. Raises Untrusted without a switch."""
        # A switch lists all of its ports, so the blocks of HCAs say nothing new.
        names, ports = dict[str, str](), list[tuple[str, Sequence[str]]]()
        for block in text.split("\n\n"):
            if head := _SWITCH.search(block):
                names[head[1]] = _MANAGED.sub(r"\1", head[2])
                ports += [(head[1], port) for port in _PORT.findall(block)]
        if not names:
            raise Untrusted("ibnetdiscover printed no switch")
        named = Counter(names.values())
        names = {guid: name if named[name] == 1 else guid for guid, name in names.items()}
        of_guid = {guid: end for end, guid in hcas.items()}
        links, between = dict[End, Link](), dict[End, Link]()
        for switch, (port, peer, peer_port, guid, width, speed) in ports:
            here, rate = End(names[switch], port), (f"{width}x{speed}", int(width) * LANES.get(speed, 0))
            if peer.startswith("S-"):
                between[here] = Link(End(names.get(peer, peer), peer_port), *rate)
            elif guid and (hca := of_guid.get(int(guid, 16))):
                links[hca] = Link(here, *rate)
        return cls(names, links, between)

    def cable(self, near: End, expected: End) -> Cable:
        """A cable as it is built. Its ends may have the GUID of a switch in place of the name."""
        near, expected = (End(self.names.get(end.at, end.at), end.port) for end in (near, expected))
        link = (self.between if near.is_switch else self.links).get(near)
        return Cable(near, expected, link.end if link else None)


def guid_of(text: str) -> int | None:
    """A port GUID, written as the last four groups of a GID."""
    digits = "".join(part.zfill(4) for part in text.split(":"))
    return int(digits, 16) if re.fullmatch(r"[0-9a-fA-F]{16}", digits) else None


def read_design(text: str) -> Design:
    """A design from its text. Raises Untrusted for any other text."""
    design, ends = dict[End, End](), set[End]()
    try:
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        if tuple(next(lines, ())) != COLUMNS:
            raise Untrusted(f"the first line of the cabling's design is not {','.join(COLUMNS)}")
        for each in filter(None, lines):
            where, (*names, port) = f"line {lines.line_num} of the design", (value.strip() for value in each)
            are_names = len(names) == 3 and all(name and name.isprintable() for name in names)
            if not are_names or not re.fullmatch(r"[0-9]{0,3}", port):
                raise Untrusted(f"{where} is not {','.join(COLUMNS)}, with a number or nothing as port")
            near, far = End(names[0], names[1].lstrip("0")), End(names[2], port.lstrip("0"))
            if {near, far} & ends:
                raise Untrusted(f"{where} has an end that an earlier line has")
            design[near] = far
            ends |= {near, far} if far.port else {near}
    except csv.Error as error:
        raise Untrusted(f"the design of the cabling is not CSV: {error}") from None
    if not design:
        raise Untrusted("the design of the cabling has no rows")
    return design


def design_of(file: Path) -> str:
    """The text of a design. Raises Misuse."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        read_design(text)
    except (OSError, UnicodeDecodeError, Untrusted) as error:
        raise Misuse(f"{file}: {error}", "busbar accept cabling STACK prints such a file") from None
    return text


def write_design(fabric: Fabric) -> str:
    """The design of a fabric as it is built."""
    out = io.StringIO()
    made = csv.writer(out, lineterminator="\n")
    made.writerow(COLUMNS)
    made.writerows([*near, *link.end] for near, link in sorted(fabric.links.items()))
    # A link between switches is one row.
    made.writerows([*near, *link.end] for near, link in sorted(fabric.between.items()) if near < link.end)
    return out.getvalue()


def of_design(fabric: Fabric, design: Design, hcas: Hcas) -> tuple[list[Cable], list[Cable]]:
    """The cables of these HCAs, and those between switches."""
    cables = [fabric.cable(near, far) for near, far in design.items()]
    return [each for each in cables if each.near in hcas], [each for each in cables if each.near.is_switch]


def of_groups(fabric: Fabric, groups: Mapping[str, str], rails: Hcas) -> tuple[list[Cable], list[str]]:
    """The cables of HCAs, expected where most of a group are; and the rails without a leaf."""
    cables, open_ = list[Cable](), list[str]()
    of_rail: dict[tuple[str, str], list[End]] = {}
    for end in rails:
        if end.at in groups:
            of_rail.setdefault((groups[end.at], end.port), []).append(end)
    for (group, hca), ends in sorted(of_rail.items()):
        leaves = Counter(fabric.links[end].end.at for end in ends if end in fabric.links)
        leaf, count = next(iter(leaves.most_common(1)), ("", 0))
        if not leaf:
            open_.append(f"the leaf of {hca} of {group}, which no node has a link to")
        elif 2 * count > len(ends):
            cables += [fabric.cable(end, End(leaf, "")) for end in ends]
        else:
            open_.append(f"{hca} of {group}")
    return cables, open_


def faults(fabric: Fabric, cables: Iterable[Cable]) -> Iterator[str]:
    """The faults of cables, as texts. Two cables, each in the place of the other one, are one fault."""
    wrong: dict[tuple[End, End], list[End]] = {}
    beside: dict[tuple[str, str], list[End]] = {}
    unseen: dict[str, list[End]] = {}
    for near, expected, found in cables:
        leaf = near.at if near.is_switch else expected.at
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
    most = median_high([link.gbps for link in fabric.between.values()] or [0])
    for near, link in fabric.between.items():
        if link.gbps < most and near < link.end:
            about = f"{link.speed}, {link.gbps:g} Gb/s, most links between switches have {most:g}"
            yield f"{near} to {link.end}: {about}"


def few_uplinks(fabric: Fabric, leaves: set[str]) -> Iterator[str]:
    """The leaves with fewer uplinks than their peers."""
    counts = Counter(end.at for end in fabric.between)
    most = median_high([counts[leaf] for leaf in leaves] or [0])
    for leaf in sorted(leaves):
        if counts[leaf] < most:
            yield f"{leaf} has {counts[leaf]} uplinks, its peers have {most}"


def additional(fabric: Fabric, between: Iterable[Cable], leaves: set[str]) -> Iterator[str]:
    """The links between switches that the design does not have; without those, the links between leaves."""
    ends = {end for cable in between for end in (cable.near, cable.expected)}
    for near, link in fabric.between.items():
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


def hcas_of(reports: Mapping[str, Told]) -> Hcas:
    """All HCAs that have a port GUID."""
    return {
        End(node, each.name if each.port == 1 else f"{each.name}:{each.port}"): guid
        for node, report in reports.items()
        for each in report.also.hcas
        if (guid := guid_of(each.guid))
    }


def rails_of(pool: Pool, reports: Mapping[str, Told]) -> tuple[Hcas, list[str]]:
    """The rails of the workers; and the workers without a report and the rails without a GUID.

    An HCA is a rail on every node if it is one on any: its cable may be out, or narrow.
    """
    names = {name for each in reports.values() for name in choose_rails(each.hcas, pool.required).names}
    hcas, ends = hcas_of(reports), [End(node, name) for node in reports for name in sorted(names)]
    unread = [name for name in pool.workers if name not in reports]
    unread += [str(end) for end in ends if end not in hcas]
    return {end: hcas[end] for end in ends if end in hcas}, unread


@lru_cache(maxsize=1)
def _fabric(evidence: Evidence) -> Fabric:
    """The fabric that ibnetdiscover has seen. Raises Untrusted."""
    printed = evidence.printed("cabling").hosts.values()
    text = "".join(str(each.get("text")) for each in printed)
    return Fabric.read(text, hcas_of(evidence.inventory.hosts))


def design_of_run(evidence: Evidence) -> Design:
    """The design; empty without one. Raises Untrusted."""
    text = evidence.begun.options.get("cabling")
    return read_design(text) if text else {}


def _without_link(fabric: Fabric, rails: Hcas) -> list[str]:
    """The rails that have no link in the fabric: nothing is known of their leaf, and of its uplinks."""
    nodes, out = {end.at for end in rails}, dict[str, list[str]]()
    for node, hca in rails.keys() - fabric.links.keys():
        out.setdefault(hca, []).append(node)
    found = [
        f"the leaf of {hca}, which no node has a link to" if len(out[hca]) == len(nodes) > 1
        else f"{hca} of {listed(sorted(out[hca]))}, without a link"
        for hca in sorted(out)
    ]  # fmt: skip
    return found if rails else ["the leaf of any rail"]


_row = partial(kind, required=has_infiniband, uses=("inventory",))


@_row("cabling.rails", "each rail is in its leaf and port")
def _rails(asked: Question) -> Finding:
    fabric, (rails, open_) = _fabric(asked.evidence), rails_of(asked.pool, asked.reports)
    design, groups = design_of_run(asked.evidence), asked.pool.rail_groups
    if design:
        cables, _ = of_design(fabric, design, hcas_of(asked.reports))
        placed = {cable.near for cable in cables}
        open_ += [f"{end} (not in the design)" for end in rails if end not in placed]
        how = "as designed" if all(cable.expected.port for cable in cables) else LEAVES_ONLY
    elif groups:
        cables, without = of_groups(fabric, groups, rails)
        open_ += without + [f"{node} (no rail group)" for node in asked.reports if node not in groups]
        how = GROUPS
    else:
        return Finding("not run", "there is no design (--cabling FILE) and no topology.rail_group")
    return Finding.of([*faults(fabric, cables)], open_, f"{counted(len(cables), 'cable')}; {how}")


@_row("cabling.uplinks", "no link between switches is missing or swapped")
def _uplinks(asked: Question) -> Finding:
    fabric, (rails, _) = _fabric(asked.evidence), rails_of(asked.pool, asked.reports)
    _, between = of_design(fabric, design_of_run(asked.evidence), {})
    leaves = {fabric.links[rail].end.at for rail in rails if rail in fabric.links}
    bad = [*faults(fabric, between), *few_uplinks(fabric, leaves), *additional(fabric, between, leaves)]
    good = f"{counted(len(fabric.between) // 2, 'link')} between switches"
    return Finding.of(bad, _without_link(fabric, rails), good if between else f"{good}; {NO_SWITCHES}")


@_row("cabling.speed", "no link is below its width or rate", expects=expected_rate)
def _speed(asked: Question) -> Finding:
    fabric, (rails, open_) = _fabric(asked.evidence), rails_of(asked.pool, asked.reports)
    rate, links = asked.pool.required.rate_gbps, {end: fabric.links.get(end) for end in rails}
    low = [
        f"{end}: {link.speed}, {link.gbps:g} Gb/s, expected {rate:g}"
        for end, link in links.items()
        if link and link.gbps < rate
    ]
    open_ += _without_link(fabric, rails)
    return Finding.of([*low, *slow(fabric)], open_, f"{counted(len(links), 'rail')} at {rate:g} Gb/s")


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
            text = unpacked(printed.get("text"), MAX_TEXT)
            if len(text) > MAX_TEXT:
                raise NoVerdict(f"ibnetdiscover printed more than {MAX_TEXT >> 20} MiB")
            told = {**printed, "text": text.decode(errors="replace")}
            return found.model_copy(update={"hosts": {name: told}})
        why = found.failed.get(name) or f"{name}: {printed.get('error')}"
    raise NoVerdict(why)


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
    rails = dict[End, int]()
    for pool in filter(has_infiniband, on.pools.values()):
        rails |= rails_of(pool, {name: reports[name] for name in pool.workers if name in reports})[0]
    try:
        fabric = Fabric.read(printed["text"], rails)
    except Untrusted as error:
        raise NoVerdict(f"{host}: {error}") from None
    if not fabric.links:
        raise NoVerdict(f"no rail of a worker is in the fabric that {host} sees")
    return write_design(fabric)


STAGE = Planned("cabling", cabling, False, lambda nodes: 60, logs_in=True)
