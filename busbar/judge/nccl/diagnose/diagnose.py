"""Makes diagnoses, the first cause first, from the recognized lines and the codes of the gates.

A failure has one first cause: the error where it occurred, else what another process saw of it, else a
finding of the gates, else a line that only says that something failed. Among several of one kind the earliest
line counts. The echoes of the first cause follow it. A cause that the log refutes is not named.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

from pydantic import BaseModel, ConfigDict

from busbar.judge.nccl.checks.context import Check, Context, nvls_lost
from busbar.judge.nccl.checks.hosts import differences
from busbar.judge.nccl.checks.transport import proven_transport
from busbar.judge.nccl.diagnose.known import (
    Failure,
    Kind,
    Observation,
    Severity,
    failure,
    failures,
    host_of,
)
from busbar.judge.nccl.diagnose.unusual import PREFIX, form
from busbar.judge.nccl.log.reader import short
from busbar.judge.nccl.log.records import LogLine

EARLIEST = "the earliest WARN"
SLOW: tuple[Observation, ...] = ("edges-without-gdr", "tcp-edges")
COMPLETION = re.compile(
    r"Got completion (?:from peer .{0,200}?)?with (?:status=(?:\w+\()?|error )(?P<status>\d{1,3})\b"
    r"(?:.{0,200}?\bvendor[ _]err[ =](?P<error>\d{1,3})\b)?"
)
# enum ibv_wc_status, from 0 on (rdma-core libibverbs/verbs.h)
STATUSES = (
    "SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR",
    "MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR",
    "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR",
    "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR",
)  # fmt: skip
# as NCCL's logs and UCX (`synd 0x15 vend 0x81`) print them beside a status
MLX5_ERRORS = {
    81: "local protection", 129: "transport retry counter exceeded", 135: "receiver not ready",
    136: "remote access", 137: "remote operation", 249: "flushed",
}  # fmt: skip
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
    by_code = {check.code: check for check in checks}
    observed = _observations(context)
    shown = [(failure(k.name), k.first.line, k.first.text, k.count) for k in context.log.known_lines]
    for each in failures():
        if any(code in by_code for code in each.unless):
            continue
        if check := next((by_code[code] for code in each.codes if code in by_code), None):
            shown.append((each, check.line or 0, check.evidence or check.reason, 1))
        elif line := observed.get(each.observed) if each.observed else None:
            shown.append((each, line.line, line.text, 1))
    found = [_diagnosis(context, *each) for each in shown]
    names = {d.name for d in found}
    worst = next((s for s in ("fail", "unknown") if any(c.status == s for c in checks)), None)
    refused = [c for c in checks if c.status == worst]
    found.sort(key=lambda d: (_distance(failure(d.name), names), not _shows(d, refused), *_place(d)))
    ordered = [d.model_copy(update={"role": _role(d, at, names, refused)}) for at, d in enumerate(found)]
    return [*_earliest(context, ordered, refused), *ordered]


def _earliest(context: Context, found: list[Diagnosis], refused: list[Check]) -> list[Diagnosis]:
    """The earliest error or warning of NCCL, where a log failed and no rule knows more than echoes of it."""
    lines = [unusual.first for unusual in context.log.unusual if unusual.sort in ("error", "warn")]
    known = found and failure(found[0].name).effective_kind != "echo"
    if not refused or refused[0].status != "fail" or known or not lines:
        return []
    first = min(lines, key=lambda line: line.line)
    if found:
        found[0] = found[0].model_copy(update={"role": "echo"})
    return [
        Diagnosis(
            name="earliest-warning",
            severity="fatal",
            meaning="NCCL said this first, and no rule knows it",
            cause=PREFIX.sub("", first.text),
            next="look the text up in NCCL's sources and issues; dmesg on the host that prints it",
            line=first.line,
            evidence=first.text,
            role="first-cause",
        )
    ]


def _diagnosis(context: Context, known: Failure, line: int, evidence: str, count: int) -> Diagnosis:
    """KNOWN, with the cause that the log leaves: what its host, or any if none is named, has printed."""
    host, why = host_of(evidence), {"cause": known.cause, "next": known.next}
    for other in known.instead:
        hosts = set().union(*(context.log.stated.get(text, ()) for text in other.where))
        if hosts and (not host or host in hosts or "" in hosts):
            why = {"cause": other.cause, "next": other.next}
            break
    warnings = context.log.evidence.warnings.values()
    if first := min(warnings, key=lambda warning: warning.line, default=None):
        text = f"{EARLIEST} (line {first.line}: {first.text})"
        why = {name: said.replace(EARLIEST, text, 1) for name, said in why.items()}
    meaning = ": ".join([known.meaning, *_completion(evidence)])
    about = {"name": known.name, "severity": known.severity, "meaning": meaning}
    return Diagnosis.model_validate({**about, **why, "line": line, "evidence": evidence, "count": count})


def _completion(text: str) -> list[str]:
    """The status and the vendor's error of the completion that TEXT reports; [] for another text."""
    found = COMPLETION.search(text)
    if found is None:
        return []
    status, error = int(found["status"]), int(found["error"] or 0)
    said = f"status {status}"
    if status < len(STATUSES):
        said += f" ({STATUSES[status]})"
    return [f"{said}, vendor error {error} ({MLX5_ERRORS[error]})" if error in MLX5_ERRORS else said]


def _shows(found: Diagnosis, refused: list[Check]) -> bool:
    """Return whether FOUND is the finding of one of REFUSED."""
    shown = (found.line, found.evidence)
    return any(shown == (check.line or 0, check.evidence or check.reason) for check in refused)


def _distance(found: Failure, names: set[str]) -> float:
    """The distance of a failure from the first cause, where NAMES are all failures in the log."""
    if found.severity == "fatal":
        return KINDS.index(found.effective_kind)
    explained = [_distance(failure(name), names) for name in names.intersection(found.explains)]
    if explained:
        return min(explained) - 0.1  # right before what follows from it
    if found.effective_kind == "echo":
        return len(KINDS)
    return len(KINDS) + (1 if found.severity == "degraded" else 2)


def _place(found: Diagnosis) -> tuple[int, int]:
    """Sort key within one kind: the line; for findings of gates, the order of the table."""
    position = [f.name for f in failures()].index(found.name)
    return (0, position) if failure(found.name).effective_kind == "symptom" else (found.line, position)


def _role(found: Diagnosis, at: int, names: set[str], refused: list[Check]) -> Role:
    if not refused:
        return "other"
    known = failure(found.name)
    explains = bool(names.intersection(known.explains))
    if at == 0:
        # without a failed gate, a slow network says more than what could not be judged without options
        observed = known.observed in SLOW and refused[0].status == "unknown"
        first = found.severity == "fatal" or explains or observed or _shows(found, refused)
        return "first-cause" if first else "other"
    explained = any(found.name in failure(name).explains for name in names)
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
    """Ranks that did not end as the others of their communicator, and tables without a warm-up."""
    found: dict[Observation, LogLine] = {}
    for size, ranks in context.log.evidence.destroyed.items() if context.is_whole else ():
        absent = sorted(set(range(size)) - ranks)
        if absent and size == context.ranks:
            text = f"{len(ranks)} of {size} ranks print Destroy COMPLETE, rank {absent[0]} does not"
            found["ranks-not-destroyed"] = LogLine(str(absent[0]), 0, text)
    for banner in (run.preamble.banner for run in context.judged):
        if banner is not None and banner.warmup == 0:
            found["no-warm-up"] = LogLine("", banner.line, banner.text)
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


RemarkKind = Literal["error", "warn", "kernel", "other", "known", "differs"]
ORDER: tuple[RemarkKind, ...] = ("error", "warn", "kernel", "known", "other", "differs")


class Remark(BaseModel):
    """An unusual line, the first of `count` that differ only in numbers, hosts and ranks; line 0: no line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: RemarkKind
    line: int
    text: str
    count: int = 1


def remarks(context: Context, diagnoses: list[Diagnosis]) -> list[Remark]:
    """All remarks on a log: errors before warnings before the kernel before the rest, the earliest first."""
    log = context.log
    listed = [run.preamble for run in log.runs]
    listed += [log.dangling] if log.dangling is not None else []
    hosts = {short(rank.host) for preamble in listed for rank in preamble.ranks} | {*log.evidence.hosts}
    names = sorted(filter(None, hosts), key=len, reverse=True)
    of_host = re.compile("|".join(map(re.escape, names)) or "(?!)")
    found: dict[tuple[RemarkKind, str], Remark] = {}
    for unusual in log.unusual:
        line = unusual.first
        if unusual.decides or not (unusual.about_hardware or of_host.search(line.text)):
            continue
        key = unusual.sort, of_host.sub("HOST", form(line.text))
        _add_remark(
            found, key, Remark(kind=unusual.sort, line=line.line, text=line.text, count=unusual.count)
        )
    for each in diagnoses:
        if each.severity == "degraded" and not failure(each.name).codes:  # a gate says those itself
            remark = Remark(kind="known", line=each.line, text=each.evidence, count=each.count)
            _add_remark(found, ("known", each.name), remark)
    ordered = sorted(found.values(), key=lambda remark: (ORDER.index(remark.kind), remark.line))
    return [*ordered, *(Remark(kind="differs", line=0, text=text) for text in differences(context))]


def _add_remark(
    found: dict[tuple[RemarkKind, str], Remark], key: tuple[RemarkKind, str], new: Remark
) -> None:
    same = found.get(key)
    if same is None:
        found[key] = new
        return
    first = min(same, new, key=lambda remark: remark.line)
    found[key] = first.model_copy(update={"count": same.count + new.count})
