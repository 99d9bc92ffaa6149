"""The cables of the fabric: one host of the fabric sees all of them."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping

from busbar.exits import NoVerdict
from busbar.preflight.network_checks import choose_rails
from busbar.preflight.report import Report
from busbar.text import counted, listed
from stacks.accept.package.evidence import PRINTED, Printed, write_json
from stacks.accept.package.kinds import Finding, Question, kind, sentences
from stacks.accept.package.running import Planned, Running, measure_on
from stacks.accept.package.site import Pool
from stacks.accept.package.subjects.inventory import ask_workers, devices
from stacks.accept.package.wiring import (
    MAX_TEXT,
    Fabric,
    Rails,
    additional,
    faults,
    few_uplinks,
    guid_of,
    of_design,
    of_groups,
    slow,
    write_design,
)

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


@kind("cabling.rails", "each rail is in its leaf and port", required=has_infiniband, uses=("inventory",))
def _rails(asked: Question) -> Finding:
    fabric, rows, groups = asked.evidence.fabric, asked.evidence.design, asked.pool.rail_groups
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


@kind(
    "cabling.uplinks", "no link between switches is missing or swapped",
    required=has_infiniband, uses=("inventory",),
)  # fmt: skip
def _uplinks(asked: Question) -> Finding:
    fabric, rails = asked.evidence.fabric, rails_of(asked.pool, asked.reports)
    rows = asked.evidence.design
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


@kind(
    "cabling.speed", "no link is below its width or rate", required=has_infiniband, uses=("inventory",),
    expects=lambda pool, _: {"rate_gbps": pool.required.rate_gbps},
)  # fmt: skip
def _speed(asked: Question) -> Finding:
    fabric, rate = asked.evidence.fabric, asked.pool.required.rate_gbps
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
    why = "every worker is in quarantine"
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
    except (binascii.Error, ValueError, zlib.error) as error:
        raise NoVerdict(f"the output of ibnetdiscover cannot be unpacked: {error}") from None
    if len(text) > MAX_TEXT:
        raise NoVerdict(f"ibnetdiscover printed more than {MAX_TEXT >> 20} MiB")
    return text.decode(errors="replace")


def cabling(on: Running) -> dict[str, str]:
    """Keep the fabric. Where it cannot be seen, no pool has a result."""
    notes = {
        name: "the pool has no InfiniBand" for name, pool in on.site.pools.items() if not has_infiniband(pool)
    }
    try:
        write_json(on.at("cabling") / PRINTED, discover(on).model_dump(mode="json"))
    except NoVerdict as error:
        notes = {name: str(error) for name in on.site.pools} | notes
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
