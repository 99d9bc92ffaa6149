"""Makes diagnoses, the first cause first, from the recognized lines and the codes of the gates.

A failure has one first cause: the error where it occurred, else what another process saw of it, else a
finding of the gates, else a line that only says that something failed. Among several of one kind the earliest
line counts. The echoes of the first cause follow it. A cause that the log refutes is not named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Literal

from busbar.judge.nccl.checks.context import Check, Context, nvls_lost
from busbar.judge.nccl.checks.hosts import differences
from busbar.judge.nccl.checks.transport import proven_transport
from busbar.judge.nccl.log.known import Failure, Kind, Observation, Severity, failure, failures, host_of
from busbar.judge.nccl.log.reader import short
from busbar.judge.nccl.log.records import LogLine, Rank
from busbar.judge.nccl.log.unusual import PREFIX, form
from busbar.models import StrictModel

BY_LINE = attrgetter("line")
EARLIEST = "the earliest WARN"
SETTING = re.compile(r"\bNCCL_(?!DEBUG)[A-Z0-9_]+")
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


class Diagnosis(StrictModel):
    """A known failure in a log: its meaning, and what to run next. `count`: lines that show it.

    `role`: the first cause of the log's failure (only the first diagnosis), an echo of it, or neither.
    """

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
    observed = dict(_observations(context))
    shown = [(_here(context, known.rule), known.first, known.count) for known in context.log.known_lines]
    for rule in failures():
        if any(code in by_code for code in rule.unless):
            continue
        if check := next((by_code[code] for code in rule.codes if code in by_code), None):
            shown.append((rule, _line_of(check), 1))
        elif line := observed.get(rule.observed) if rule.observed else None:
            shown.append((rule, line, 1))
    rules = {rule.name: rule for rule, _, _ in shown}
    warned = {rule.name for rule, line, _ in shown if PREFIX.match(line.text)}
    has_echo = any(rule.effective_kind == "echo" for rule in rules.values())
    places = {rule.name: place for place, rule in enumerate(failures())}
    worst = next((s for s in ("fail", "unknown") if any(c.status == s for c in checks)), None)
    refused = {(line.line, line.text) for line in (_line_of(c) for c in checks if c.status == worst)}

    def order(each: tuple[Failure, LogLine, int]) -> tuple[float, bool, int, int]:
        rule, line, _ = each
        # findings of gates are in the order of the table, lines in that of the log
        at = 0 if rule.effective_kind == "symptom" else line.line
        return _distance(rule, rules, warned), (line.line, line.text) not in refused, at, places[rule.name]

    found: list[Diagnosis] = []
    for rule, line, count in sorted(shown, key=order):
        role: Role = "other"
        if worst is not None and not found:
            # what slows a run says more than that nothing, or not all, could be judged
            slow = rule.severity == "degraded" and not context.has_rows
            slow = slow or (rule.observed in SLOW and worst == "unknown")
            first = rule.severity == "fatal" or slow or (line.line, line.text) in refused
            caused = rules.keys() & rule.explains or (has_echo and rule.name in warned)
            role = "first-cause" if first or caused else "other"
        elif worst is not None:
            linked = rules.keys() & rule.explains or any(rule.name in r.explains for r in rules.values())
            follows = linked or rule.effective_kind in ("crash", "peer", "echo")
            role = "echo" if rule.severity == "fatal" or follows else "other"
        found.append(_diagnosis(context, rule, line, count, role))
    first_line = _unknown_cause(context, found[0] if found else None, warned, failed=worst == "fail")
    if first_line is None:
        return found
    settings = " ".join(f"-e {name}" for name in sorted({*SETTING.findall(first_line.text)}))
    earliest = Diagnosis(
        name="earliest-warning",
        severity="fatal",
        meaning="NCCL said this first, and no rule knows it",
        cause=PREFIX.sub("", first_line.text),
        next=(f"env | grep {settings} in the job, the image and /etc/nccl.conf; " if settings else "")
        + "look the text up in NCCL's sources and issues; dmesg on the host that prints it",
        line=first_line.line,
        evidence=first_line.text,
        role="first-cause",
    )
    return [earliest, *(d.model_copy(update={"role": "echo"}) for d in found[:1]), *found[1:]]


def _here(context: Context, rule: Failure) -> Failure:
    """RULE; what keeps traffic between hosts off RDMA explains nothing on one host."""
    between_hosts = {"socket-fallback", "no-gpudirect"} & {*rule.explains}
    return rule.model_copy(update={"explains": ()}) if between_hosts and context.nodes == 1 else rule


def _unknown_cause(
    context: Context, first: Diagnosis | None, warned: set[str], *, failed: bool
) -> LogLine | None:
    """NCCL's earliest warning or error that no rule knows, if it says more than the FIRST known failure."""
    unknown = [unusual.first for unusual in context.log.unusual if unusual.sort in ("error", "warn")]
    line = min(unknown, key=BY_LINE, default=None)
    if not failed and context.has_rows:
        return None
    if line is None or first is None:
        return line
    known = failure(first.name)
    if known.name == "hang" and "Init COMPLETE" in context.log.stated:
        return None  # the ranks were set up, so they went on after the warning
    if known.effective_kind == "echo":
        return line
    if known.effective_kind == "peer" and known.severity != "fatal":
        return line if line.line < first.line else None  # what a peer saw follows from it
    return None if failed or known.name in warned else line


def _line_of(check: Check) -> LogLine:
    """What shows the finding of a gate."""
    return LogLine("", check.line or 0, check.evidence or check.reason)


def _diagnosis(context: Context, known: Failure, line: LogLine, count: int, role: Role) -> Diagnosis:
    """KNOWN, with the cause that the log leaves: what its host, or any if none is named, has printed."""
    host, cause, following = host_of(line.text), known.cause, known.next
    for other in known.instead:
        hosts = set().union(*(context.log.stated.get(text, ()) for text in other.where))
        if (other.one_host and context.nodes == 1) or (hosts and (not host or host in hosts or "" in hosts)):
            cause, following = other.cause, other.next
            break
    if first := min(context.log.evidence.warnings.values(), key=BY_LINE, default=None):
        text = f"{EARLIEST} (line {first.line}: {first.text})"
        cause, following = (said.replace(EARLIEST, text, 1) for said in (cause, following))
    meaning = ": ".join([known.meaning, *_completion(line.text)])
    return Diagnosis(
        name=known.name, severity=known.severity, meaning=meaning, cause=cause, next=following,
        line=line.line, evidence=line.text, count=count, role=role,
    )  # fmt: skip


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


def _distance(rule: Failure, rules: dict[str, Failure], warned: set[str]) -> float:
    """The distance of a failure from the first cause.

    RULES has all failures in the log. NCCL printed those in WARNED as a warning or an error.
    """
    if rule.severity == "fatal":
        return KINDS.index(rule.effective_kind)
    own: float = len(KINDS) + (1 if rule.severity == "degraded" else 2)
    if rule.effective_kind == "echo":
        own = len(KINDS)
    elif rule.name in warned:
        # a warning behind which NCCL goes on, slower, says less than one behind which it gives up
        own = KINDS.index("echo") - (0.05 if "below-floor" in rule.explains else 0.1)
    explained = [_distance(rules[name], rules, warned) for name in rules.keys() & rule.explains]
    return min([own, *(distance - 0.1 for distance in explained)])  # right before what follows from it


def _observations(context: Context) -> Iterator[tuple[Observation, LogLine]]:
    """Observations in the log that are not findings of gates."""
    log, evidence, whole = context.log, context.evidence, context.log.evidence
    networks = sorted(evidence.networks.values(), key=BY_LINE)
    if len(networks) > 1:
        yield "different-networks", networks[1]
    shared = [e.first for e in evidence.edges.values() if e.transport.kind == "SHM"]
    if shared and context.expectation.nvlink_gbps:
        yield "shared-memory-edge", min(shared, key=BY_LINE)
    lost = nvls_lost(whole, context.judged, context.expectation.system)
    if lost is not None and "all_reduce" in context.tables:
        yield "nvls-lost", lost
    for banner in (run.preamble.banner for run in context.judged):
        if banner is not None and banner.warmup == 0:
            yield "no-warm-up", banner.at
    listed = [run.preamble.ranks for run in log.runs] + ([log.dangling.ranks] if log.dangling else [])
    for uneven in filter(None, map(_uneven, reversed(listed))):
        yield "uneven-ranks", uneven
    if context.expectation.transport is not None:
        return
    transport = proven_transport(context)
    edges = sorted(evidence.net_edges.values(), key=lambda e: e.first.line)
    tcp = [e.first for e in edges if e.transport.name == "Socket"]
    if not edges and "Socket" in evidence.networks and (len(evidence.hosts) > 1 or transport == "socket"):
        tcp = [evidence.networks["Socket"]]
    if tcp:
        yield "tcp-edges", tcp[0]
    elif transport == "rdma" and not any(e.transport.gdr for e in edges):
        yield "edges-without-gdr", edges[0].first


def _uneven(listed: list[Rank]) -> LogLine | None:
    """The first rank of a host that has fewer or more ranks than another, in a device list that is whole."""
    counts = Counter(r.host for r in listed)
    if len(set(counts.values())) < 2 or {r.rank for r in listed} != set(range(len(listed))):
        return None
    (most, _), (least, few) = counts.most_common()[0], counts.most_common()[-1]
    first = next(r for r in listed if r.host == least)
    return LogLine(least, first.at.line, f"{few} ranks on {least}, {counts[most]} on {most}")


RemarkKind = Literal["error", "warn", "kernel", "other", "known", "differs"]
ORDER: tuple[RemarkKind, ...] = ("error", "warn", "kernel", "known", "other", "differs")


class Remark(StrictModel):
    """An unusual line, the first of `count` that differ only in numbers, hosts and ranks; line 0: no line."""

    kind: RemarkKind
    line: int
    text: str
    count: int = 1


def remarks(context: Context, diagnoses: list[Diagnosis]) -> list[Remark]:
    """All remarks on a log: errors before warnings before the kernel before the rest, the earliest first."""
    log = context.log
    listed = [run.preamble for run in log.runs] + ([log.dangling] if log.dangling is not None else [])
    hosts = {short(host) for preamble in listed for host in preamble.hosts} | {*log.evidence.hosts}
    names = sorted(filter(None, hosts), key=len, reverse=True)
    of_host = re.compile("|".join(map(re.escape, names)) or "(?!)")
    found: dict[tuple[RemarkKind, str], Remark] = {}
    for unusual in log.unusual:
        line, kind = unusual.first, unusual.sort
        if unusual.decides or not (unusual.about_hardware or of_host.search(line.text)):
            continue
        key = kind, of_host.sub("HOST", form(line.text))
        same = found.setdefault(key, Remark(kind=kind, line=line.line, text=line.text, count=0))
        found[key] = same.model_copy(update={"count": same.count + unusual.count})
    for each in diagnoses:
        if each.severity == "degraded" and not failure(each.name).codes:  # a gate says those itself
            remark = Remark(kind="known", line=each.line, text=each.evidence, count=each.count)
            found["known", each.name] = remark
    ordered = sorted(found.values(), key=lambda remark: (ORDER.index(remark.kind), remark.line))
    return [*ordered, *(Remark(kind="differs", line=0, text=text) for text in differences(context))]
