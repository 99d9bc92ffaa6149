"""Reads and judges a log: lines of a launcher's log and an expectation in, a verdict out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from busbar import __version__
from busbar.judge.archive import Archive, Record
from busbar.judge.checks import JobOutcome
from busbar.judge.nccl.checks import run_all
from busbar.judge.nccl.checks.context import Context, Table, build, points
from busbar.judge.nccl.checks.transport import proven_transport
from busbar.judge.nccl.diagnose.diagnose import diagnose, remarks
from busbar.judge.nccl.diagnose.known import LineRules
from busbar.judge.nccl.expected import JUDGE
from busbar.judge.nccl.expected.expectation import Expectation
from busbar.judge.nccl.log import reader
from busbar.judge.nccl.log.evidence import OPEN_FILES
from busbar.judge.nccl.log.reader import ParsedLog
from busbar.judge.nccl.log.tables import infer
from busbar.judge.nccl.verdict import Verdict
from busbar.judge.verdict import conclusion


def read_lines(lines: Iterable[bytes | str]) -> ParsedLog:
    """Read a log given as lines (with or without line ends), in one pass and bounded memory."""
    return reader.read_lines(lines, LineRules())


def read_file(path: str) -> ParsedLog:
    """Read the log PATH or, for '-', standard input. Raises log.source.SourceError."""
    return reader.read_file(path, LineRules())


def judge(lines: Iterable[bytes | str], expectation: Expectation, job: JobOutcome | None = None) -> Verdict:
    """Judge a log given as lines."""
    return judge_log(read_lines(lines), expectation, job)


def judge_archive(archive: Archive) -> tuple[ParsedLog, Verdict] | None:
    """Judge the kept log of a measurement from its folder alone; None without the whole log and its record.

    Raises OSError, EOFError and ZstdError for a log that cannot be read, and ValueError for a record that is
    not one.
    """
    if archive.complete_log_of is None or "expectation" not in archive.record():
        return None
    record = Record.model_validate(archive.record())
    log = read_lines(archive.log_lines())
    return log, judge_log(log, Expectation.model_validate(record.expectation), record.outcome)


def judge_log(log: ParsedLog, expectation: Expectation, job: JobOutcome | None = None) -> Verdict:
    """Judge a log that was read. JOB: outcome of the job that printed it; None if only a log is given."""
    context = build(log, expectation, job)
    checks = run_all(context)
    diagnoses = diagnose(context, checks)
    results = {name: finding.result for name, finding in context.findings.items()}
    headline = next(iter(results.values()), None)
    evidence = log.evidence
    listed = [*(r.preamble for r in log.runs), *([log.dangling] if log.dangling is not None else [])]
    preamble = next((p for p in listed if p.ranks), None)
    # of a run without a table the device list says who took part, where it is whole
    alone = preamble is not None and {r.rank for r in preamble.ranks} == set(range(len(preamble.ranks)))
    known = preamble if context.ranks is None and alone and not context.has_rows else None
    return Verdict(
        **conclusion(checks),
        busbw_gbps=headline.busbw_gbps if headline else None,
        expected_gbps=headline.expected_gbps if headline else None,
        floor_gbps=headline.floor_gbps if headline else None,
        ceiling_gbps=headline.ceiling_gbps if headline else None,
        fraction=headline.fraction if headline else None,
        collectives=results,
        ranks=len(known.ranks) if known else context.ranks,
        nodes=len(known.hosts) if known else context.nodes,
        transport=proven_transport(context),
        channels=dict(evidence.via.most_common()),
        rails_per_host={h or "?": len(d) for h, d in sorted(evidence.rails.items())},
        hosts_per_rail=_hosts_per_rail(evidence.rails),
        hosts=sorted(preamble.hosts) if preamble else [],
        nccl_version=next(iter(evidence.versions), None),
        plugin=_plugin(context),
        plugin_path=next(iter(evidence.plugin_paths), None),
        topology_file=next((f for f in evidence.topology_set if f not in evidence.topology_failed), None),
        hcas=list(next(iter(evidence.hcas_of_host.values()), ())),
        checks=checks,
        diagnoses=diagnoses,
        remarks=remarks(context, diagnoses),
        more_remarks=log.uncounted,
        environment=dict(e.partition("=")[::2] for e in evidence.environment),
        open_files={limits: sorted(hosts) for limits, hosts in evidence.facts.get(OPEN_FILES, {}).items()},
        tests_version=next((r.preamble.tests_version for r in log.runs if r.preamble.tests_version), None),
        gpu=preamble.ranks[0].gpu or None if preamble else None,
        expectation=_expectation(context),
        log_sha256=log.sha256,
        log_bytes=log.bytes,
        log_lines=log.lines,
        log_date=log.date,
        judge=JUDGE,
        busbar_version=__version__,
        simulated="; ".join(evidence.simulated) or None,
    )


def tables(log: ParsedLog) -> list[Table]:
    """Every table of a log with all its rows, whatever is judged."""
    return [
        Table(
            collective=infer(run).name,
            line=run.line,
            rows=points(run),
            average=run.avg,
            out_of_bounds=run.out_of_bounds,
        )
        for run in log.runs
    ]


def _hosts_per_rail(rails: Mapping[str, set[int]]) -> dict[str, int]:
    """Network device -> number of hosts that have an edge on it."""
    counts = Counter(device for devices in rails.values() for device in devices)
    return {str(device): counts[device] for device in sorted(counts)}


def _plugin(context: Context) -> str | None:
    names = sorted(context.evidence.network_names)
    return names[0] if len(names) == 1 else next(iter(context.evidence.networks), None)


def _expectation(context: Context) -> dict[str, object]:
    given = context.expectation.model_dump(exclude_none=True)
    reasoning = [f"{name}: {line}" for name, f in context.findings.items() for line in f.result.reasoning]
    return {"reasoning": reasoning, **given}
