"""Gates on the number: bandwidth between floor and ceiling, steady, and no warning that forbids to use it."""

from __future__ import annotations

from busbar.nccl.checks.context import Context, check, row_seen, value_of
from busbar.nccl.log.records import Run, number
from busbar.nccl.log.sidecar import largest_row
from busbar.nccl.units import compared, gbps, size
from busbar.nccl.verdict import Check, CollectiveResult, HalfPoint, Point, Status

UNSTEADY = 0.10


def judge_collective(context: Context, name: str) -> tuple[Status, str, CollectiveResult, Run | None]:
    """Bandwidth of one collective against its bounds: status, reason, result and the table that decided."""
    found = context.expectation.bounds(name)
    runs = [r for r in context.tables.get(name, []) if value_of(r) is not None]
    decisive = _decisive(runs)
    value = value_of(decisive) if decisive else None
    status, reason = _status(context, name, decisive, value)
    result = CollectiveResult(
        busbw_gbps=value,
        expected_gbps=_rounded(found.expected),
        floor_gbps=_rounded(found.floor),
        ceiling_gbps=_rounded(found.ceiling),
        fraction=round(value / found.expected, 4) if value is not None and found.expected else None,
        passed=status in ("pass", "not-required"),
        size_bytes=largest_row(decisive).size if decisive else None,
        reasoning=list(found.reasoning),
        curve=_curve(decisive) if decisive else [],
    )
    return status, reason, result, decisive


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3 if value >= 1 else 6)


def _decisive(runs: list[Run]) -> Run | None:
    """Of several tables of a collective, that with the lowest value at the largest message of all."""
    if not runs:
        return None
    top = max(largest_row(r).size for r in runs)
    return min((r for r in runs if largest_row(r).size == top), key=lambda r: value_of(r) or 0.0)


def _status(context: Context, name: str, run: Run | None, value: float | None) -> tuple[Status, str]:
    found, want = context.expectation.bounds(name), context.expectation
    if run is None or value is None:
        return "unknown", f"{name}: no value"
    top = largest_row(run).size
    highest = max(number(h.busbw) or 0.0 for r in run.rows for h in (r.out_of_place, r.in_place))
    by_hand = " (set by hand)" if want.given(name) is not None else ""
    if found.floor is None:
        if want.transport == "socket":
            return (
                "not-required",
                f"{name}: {gbps(value)} over TCP; no value was given to expect, and no line rate applies",
            )
        return "unknown", f"{name}: {gbps(value)}, but what to expect is not known: {found.reasoning[-1]}"
    if top < found.plateau_bytes:
        return "unknown", (
            f"{name}: largest message {size(top)}; the bandwidth shows from {size(found.plateau_bytes)} on"
        )
    if value < found.floor:
        return "fail", f"{name}: {gbps(value)} is below the floor of {gbps(found.floor)}{by_hand}" + _plateau(
            context, value
        )
    if found.ceiling is not None and highest > found.ceiling:
        return "fail", (
            f"{name}: {gbps(highest)} is above the ceiling of {gbps(found.ceiling)}: not credible "
            "(wrong number of nodes or rails, or mixed runs)"
        )
    part = f", {compared(value, found.expected)}" if found.expected else ""
    return "pass", f"{name}: {gbps(value)} at {size(top)}{part}{by_hand}; floor {gbps(found.floor)}"


def _plateau(context: Context, value: float) -> str:
    """Half or a quarter of line rate points at rails that carry nothing."""
    hw = context.expectation.hardware
    if hw is None or hw.line_rate <= 0 or context.expectation.transport == "socket":
        return ""
    for part, words in ((0.5, "half"), (0.25, "a quarter")):
        if abs(value / hw.line_rate - part) < 0.03:
            return (
                f": about {words} of line rate: half-rate links, missing rails, or plain Tree; see the rails"
            )
    return ""


def _curve(run: Run) -> list[Point]:
    points = []
    for row in run.rows:
        o, i = row.out_of_place, row.in_place
        halves = [
            HalfPoint(
                time_us=number(h.time) or 0.0,
                algbw_gbps=number(h.algbw) or 0.0,
                busbw_gbps=number(h.busbw) or 0.0,
                wrong=number(h.errors),
            )
            for h in (o, i)
        ]
        points.append(
            Point(
                size_bytes=row.size, count=row.count, type=row.type, redop=row.redop,
                out_of_place=halves[0], in_place=halves[1],
            )
        )  # fmt: skip
    return points


def busbw(context: Context) -> Check:
    """All wanted collectives lie between their floor and ceiling."""
    name = "busbw"
    if not context.tables:
        return check(name, "unknown", "no table: no bandwidth")
    judged = [judge_collective(context, c) for c in context.tables]
    for wanted in ("fail", "unknown", "not-required"):
        bad = [j for j in judged if j[0] == wanted]
        if bad:
            run = bad[0][3]
            status: Status = bad[0][0]
            return check(name, status, "; ".join(j[1] for j in bad), row_seen(run) if run else None)
    run = judged[0][3]
    return check(name, "pass", "; ".join(j[1] for j in judged), row_seen(run) if run else None)


def stability(context: Context) -> Check:
    """Both halves agree at the largest message, and the curve is flat there."""
    name = "stability"
    if context.expectation.transport == "socket":
        return check(name, "not-required", "TCP on shared machines varies")
    if not context.judged:
        return check(name, "unknown", "no table to judge")
    for run in context.judged:
        row = largest_row(run)
        o, i = number(row.out_of_place.busbw) or 0.0, number(row.in_place.busbw) or 0.0
        if max(o, i) <= 0 or abs(o - i) / max(o, i) > UNSTEADY:
            return check(
                name,
                "fail",
                f"out-of-place {gbps(o)} and in-place {gbps(i)} differ by over 10 %",
                row_seen(run),
            )
    run = context.judged[0]
    row = largest_row(run)
    return check(name, "pass", f"{row.out_of_place.busbw} and {row.in_place.busbw} GB/s agree", row_seen(run))


def warnings(context: Context) -> Check:
    """No line of the log is a known failure; warnings of unknown kind are reported."""
    name, log = "warnings", context.log
    fatal = [d for d in log.findings.diagnoses() if d.severity == "fatal"]
    if fatal:
        first = fatal[0]
        return Check(
            name=name, status="fail", reason="; ".join(f"{d.name}: {d.meaning}" for d in fatal[:4]),
            evidence=first.evidence, line=first.line,
        )  # fmt: skip
    if log.evidence.test_failures:
        seen = next(iter(log.evidence.test_failures.values()))
        return check(name, "fail", "nccl-tests reports a failure", seen)
    known = {d.evidence for d in log.findings.diagnoses()}
    strange = [s for s in log.evidence.warnings.values() if s.text not in known]
    if strange:
        return check(name, "pass", f"{len(strange)} WARN of a kind not known here, to be read", strange[0])
    return check(
        name, "pass", "no WARN line" if not log.evidence.warnings else "only WARN lines known to be harmless"
    )
