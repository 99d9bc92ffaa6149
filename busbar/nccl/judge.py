"""judge: lines of a launcher's log and an expectation in, a verdict out."""

from __future__ import annotations

from collections.abc import Iterable

from busbar.nccl.checks import run_all
from busbar.nccl.checks.context import Context, build
from busbar.nccl.checks.value import judge_collective
from busbar.nccl.checks.wire import kind_of
from busbar.nccl.diagnose.signs import read_signs
from busbar.nccl.expected.expectation import Expectation
from busbar.nccl.log.parse import parse_lines
from busbar.nccl.log.reader import ParsedLog
from busbar.nccl.verdict import Check, CollectiveResult, Overall, Verdict

GRAVITY = {"fatal": 0, "degraded": 1, "note": 2}


def judge(lines: Iterable[bytes | str], expectation: Expectation) -> Verdict:
    """Judge a log given as lines (with or without line ends), in one pass and bounded memory."""
    return judge_log(parse_lines(lines), expectation)


def judge_log(log: ParsedLog, expectation: Expectation) -> Verdict:
    """Judge a parsed log."""
    context = build(log, expectation)
    checks = run_all(context)
    results = {name: judge_collective(context, name)[2] for name in context.tables}
    headline = _headline(results)
    overall = _overall(checks)
    evidence = log.evidence
    first = next((r.preamble for r in log.runs if r.preamble.ranks), None)
    return Verdict(
        verdict=overall,
        passed=overall == "pass",
        reasons=[f"{c.name}: {c.reason}" for s in ("fail", "unknown") for c in checks if c.status == s],
        busbw_gbps=headline.busbw_gbps if headline else None,
        expected_gbps=headline.expected_gbps if headline else None,
        floor_gbps=headline.floor_gbps if headline else None,
        ceiling_gbps=headline.ceiling_gbps if headline else None,
        fraction=headline.fraction if headline else None,
        collectives=results,
        ranks=context.ranks,
        nodes=context.nodes,
        transport=kind_of(context),
        channels=dict(evidence.via.most_common()),
        rails_per_host={h or "?": len(d) for h, d in sorted(evidence.rails.items())},
        nccl_version=next(iter(evidence.versions), None),
        plugin=_plugin(context),
        plugin_path=next(iter(evidence.plugin_paths), None),
        topology_file=next((f for f in evidence.topology_set if f not in evidence.topology_failed), None),
        hcas=list(next(iter(evidence.hcas_of_host.values()), ())),
        checks=checks,
        diagnoses=sorted(
            [*log.findings.diagnoses(), *read_signs(context, checks)], key=lambda d: GRAVITY[d.severity]
        ),
        warnings=[w[:400] for w in evidence.warnings][:20],
        environment=dict(e.partition("=")[::2] for e in evidence.environment),
        tests_version=next((r.preamble.tests_version for r in log.runs if r.preamble.tests_version), None),
        gpu=first.ranks[0].gpu or None if first else None,
        expectation=_expectation(context),
        log_sha256=log.sha256,
        log_bytes=log.bytes,
        log_lines=log.lines,
        stand_ins=list(evidence.stand_ins),
    )


def _overall(checks: list[Check]) -> Overall:
    states = {c.status for c in checks}
    if "fail" in states:
        return "fail"
    return "unknown" if "unknown" in states or "pass" not in states else "pass"


def _headline(results: dict[str, CollectiveResult]) -> CollectiveResult | None:
    return next(iter(results.values()), None)


def _plugin(context: Context) -> str | None:
    names = sorted(context.evidence.network_names())
    return names[0] if len(names) == 1 else next(iter(context.evidence.networks), None)


def _expectation(context: Context) -> dict[str, object]:
    given = context.expectation.model_dump(exclude_none=True)
    reasoning = [f"{c}: {line}" for c in context.tables for line in context.expectation.bounds(c).reasoning]
    return {"reasoning": reasoning, **given}
