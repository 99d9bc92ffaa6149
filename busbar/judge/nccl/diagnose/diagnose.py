"""Makes diagnoses, the first cause first, from the recognized lines and the codes of the gates.

A failure has one first cause: the error where it occurred, else what another process saw of it, else a
finding of the gates, else a line that only says that something failed. Among several of one kind the earliest
line counts. The echoes of the first cause follow it. A cause that the log refutes is not named.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import BaseModel, ConfigDict

from busbar.judge.nccl.checks.algorithm import nvls_lost
from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.result import Check
from busbar.judge.nccl.checks.transport import proven_transport
from busbar.judge.nccl.diagnose.rules import (
    Kind,
    Observation,
    Rule,
    Severity,
    host_of,
    is_harmless_warning,
    rule,
    rules,
)
from busbar.judge.nccl.log.matcher import KnownLine
from busbar.judge.nccl.log.records import LogLine

EARLIEST = "the earliest WARN"
FEW = 5  # iterations of a size from which its mean is steady
SLOW: tuple[Observation, ...] = ("edges-without-gdr", "tcp-edges")
Role = Literal["first-cause", "echo", "other"]
KINDS: tuple[Kind, ...] = ("cause", "crash", "peer", "symptom", "echo")


class Diagnosis(BaseModel):
    """A known failure in a log: its meaning, and what to run next. `count`: lines that show it.

    `role`: the first cause of the log's failure (only the first diagnosis), an echo of it, or neither.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    severity: Severity
    meaning: str
    cause: str
    next: str
    line: int
    evidence: str
    count: int = 1
    role: Role = "other"


def diagnose(context: Context, checks: list[Check]) -> list[Diagnosis]:
    """Every known failure that the log shows: the first cause, its echoes, and the others."""
    found = [_of_line(known) for known in context.log.known_lines]
    by_code = {check.code: check for check in checks}
    observed = _observations(context)
    for each in rules():
        if any(c in by_code for c in each.unless):
            continue
        code = next((c for c in each.codes if c in by_code), None)
        if code is not None:
            check = by_code[code]
            found.append(_diagnosis(each, check.line or 0, check.evidence or check.reason))
        elif each.observed is not None and each.observed in observed:
            line = observed[each.observed]
            found.append(_diagnosis(each, line.line, line.text))
    found = [_with_warning(_not_refuted(d, context), context) for d in found]
    names = {d.name for d in found}
    worst = next((s for s in ("fail", "unknown") if any(c.status == s for c in checks)), None)
    refused = [c for c in checks if c.status == worst]
    ordered = sorted(
        found, key=lambda d: (_distance(rule(d.name), names), not _shows(d, refused), *_place(d))
    )
    return [d.model_copy(update={"role": _role(d, at, names, refused)}) for at, d in enumerate(ordered)]


def _shows(found: Diagnosis, refused: list[Check]) -> bool:
    """Return whether FOUND is the finding of one of REFUSED."""
    shown = (found.line, found.evidence)
    return any(shown == (check.line or 0, check.evidence or check.reason) for check in refused)


def _not_refuted(found: Diagnosis, context: Context) -> Diagnosis:
    """FOUND with the cause that the log leaves: what its host, or any where none is named, has printed."""
    host = host_of(found.evidence)
    for other in rule(found.name).instead:
        hosts = set().union(*(context.log.stated.get(text, ()) for text in other.where))
        if hosts and (not host or host in hosts or "" in hosts):
            return found.model_copy(update={"cause": other.cause, "next": other.next})
    return found


def _with_warning(found: Diagnosis, context: Context) -> Diagnosis:
    """FOUND, with the WARN line that its texts refer to."""
    lines = (line for line in context.log.evidence.warnings.values() if not is_harmless_warning(line.text))
    first = min(lines, key=lambda line: line.line, default=None)
    if first is None:
        return found
    text = f"{EARLIEST} (line {first.line}: {first.text})"
    return found.model_copy(
        update={name: getattr(found, name).replace(EARLIEST, text, 1) for name in ("cause", "next")}
    )


def _distance(found: Rule, names: set[str]) -> float:
    """The distance of a failure from the first cause, where NAMES are all failures in the log."""
    if found.severity == "fatal":
        return KINDS.index(found.effective_kind)
    explained = [_distance(rule(name), names) for name in names.intersection(found.explains)]
    if explained:
        return min(explained) - 0.1  # right before what follows from it
    if found.effective_kind == "echo":
        return len(KINDS)
    return len(KINDS) + (1 if found.severity == "degraded" else 2)


def _place(found: Diagnosis) -> tuple[int, int]:
    """Sort key within one kind: the line; for findings of gates, the order of the rules."""
    position = [r.name for r in rules()].index(found.name)
    return (0, position) if rule(found.name).effective_kind == "symptom" else (found.line, position)


def _role(found: Diagnosis, at: int, names: set[str], refused: list[Check]) -> Role:
    if not refused:
        return "other"
    known = rule(found.name)
    explains = bool(names.intersection(known.explains))
    if at == 0:
        # without a failed gate, a slow network says more than what could not be judged without options
        observed = known.observed in SLOW and refused[0].status == "unknown"
        first = found.severity == "fatal" or explains or observed or _shows(found, refused)
        return "first-cause" if first else "other"
    explained = any(found.name in rule(name).explains for name in names)
    follows = explains or explained or known.effective_kind in ("crash", "peer", "echo")
    return "echo" if found.severity == "fatal" or follows else "other"


def _observations(context: Context) -> dict[Observation, LogLine]:
    """Observations in the log that are not findings of gates.

    These are GPUs of one host that exchange data through its memory, processes on different networks, hosts
    with different numbers of ranks, rows that are far apart in time and, where no transport is expected, slow
    networks.
    """
    found: dict[Observation, LogLine] = {}
    networks = sorted(context.evidence.networks.values(), key=lambda line: line.line)
    if len(networks) > 1:
        found["different-networks"] = networks[1]
    shared = (e.first for e in context.evidence.edges.values() if e.transport.kind == "SHM")
    first = min(shared, key=lambda line: line.line, default=None)
    if first is not None and context.expectation.nvlink_gbps:
        found["shared-memory-edge"] = first
    if context.log.gap is not None:
        found["gap-between-rows"] = context.log.gap
    lost = nvls_lost(context.log.evidence, context.judged, context.expectation.system)
    if lost is not None:
        found["nvls-lost"] = lost
    found |= _ends(context)
    uneven = _uneven(context)
    if uneven is not None:
        found["uneven-ranks"] = uneven
    if context.expectation.transport is None:
        found |= _slow_networks(context)
    return found


def _ends(context: Context) -> dict[Observation, LogLine]:
    """Ranks that did not end as the others of their communicator, and tables of very few iterations."""
    found: dict[Observation, LogLine] = {}
    for size, ranks in context.log.evidence.destroyed.items() if context.is_whole else ():
        absent = sorted(set(range(size)) - ranks)
        if absent and size == context.ranks:
            text = f"{len(ranks)} of {size} ranks print Destroy COMPLETE, rank {absent[0]} does not"
            found["ranks-not-destroyed"] = LogLine(str(absent[0]), 0, text)
    for banner in (run.preamble.banner for run in context.judged):
        if banner is not None and (banner.warmup == 0 or (banner.iterations or FEW) < FEW):
            found["few-iterations"] = LogLine("", banner.line, banner.text)
    return found


def _slow_networks(context: Context) -> dict[Observation, LogLine]:
    """TCP between hosts, and edges of which none has GPUDirect RDMA."""
    evidence = context.evidence
    edges = sorted(evidence.net_edges.values(), key=lambda e: e.first.line)
    tcp = [e.first for e in edges if e.transport.name == "Socket"]
    several = len(evidence.hosts) > 1 or proven_transport(context) == "socket"
    if not edges and "Socket" in evidence.networks and several:
        tcp = [evidence.networks["Socket"]]
    if tcp:
        return {"tcp-edges": tcp[0]}
    if proven_transport(context) == "rdma" and not any(e.transport.gdr for e in edges):
        return {"edges-without-gdr": edges[0].first}
    return {}


def _uneven(context: Context) -> LogLine | None:
    """The first rank of a host that has fewer or more ranks than another, in a device list that is whole."""
    last = [context.log.dangling] if context.log.dangling is not None else []
    for listed in (p.ranks for p in (*(run.preamble for run in context.log.runs), *last)):
        counts = Counter(r.host for r in listed)
        if len(set(counts.values())) > 1 and {r.rank for r in listed} == set(range(len(listed))):
            (most, _), (least, few) = counts.most_common()[0], counts.most_common()[-1]
            first = next(r for r in listed if r.host == least)
            return LogLine(least, first.line, f"{few} ranks on {least}, {counts[most]} on {most}")
    return None


def _of_line(known: KnownLine) -> Diagnosis:
    return _diagnosis(rule(known.name), known.first.line, known.first.text, known.count)


def _diagnosis(found: Rule, line: int, evidence: str, count: int = 1) -> Diagnosis:
    return Diagnosis(
        name=found.name,
        severity=found.severity,
        meaning=found.meaning,
        cause=found.cause,
        next=found.next,
        line=line,
        evidence=evidence,
        count=count,
    )
