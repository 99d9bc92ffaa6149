"""Gate on what NCCL and its programs print of themselves: each fact and what it must equal."""

from __future__ import annotations

import re
from collections.abc import Iterator

from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.result import Check, failed, passed, unknown
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
