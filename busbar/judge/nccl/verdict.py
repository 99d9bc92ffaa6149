"""Reads and judges a log: lines of a launcher's log and an expectation in, a verdict out, as JSON.

A verdict has the measured and the expected values, and every gate with its evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from busbar import __version__
from busbar.judge import checks as shared
from busbar.judge.archive import Archive, Record
from busbar.judge.checks import JobOutcome, Overall, Status
from busbar.judge.nccl.checks import run_all
from busbar.judge.nccl.checks.context import Check, CollectiveResult, Point, Table, build, points
from busbar.judge.nccl.checks.transport import ProvenTransport, proven_transport
from busbar.judge.nccl.diagnose import Diagnosis, Remark, diagnose, remarks
from busbar.judge.nccl.expected import JUDGE
from busbar.judge.nccl.expected.expectation import Expectation
from busbar.judge.nccl.log.evidence import OPEN_FILES
from busbar.judge.nccl.log.reader import ParsedLog, read_lines
from busbar.judge.nccl.log.tables import infer

__all__ = ["Check", "CollectiveResult", "Diagnosis", "Overall", "Point", "Status", "Verdict"]

SCHEMA: Literal[3] = 3
"""Version of the verdict and of the record beside it. Those before 3 are of a busbar before 1.0."""


class Verdict(shared.Verdict):
    """The whole judgement of one log."""

    schema_: Literal[3] = Field(default=SCHEMA, alias="schema")
    busbw_gbps: float | None
    expected_gbps: float | None
    floor_gbps: float | None
    ceiling_gbps: float | None
    fraction: float | None
    collectives: dict[str, CollectiveResult]
    ranks: int | None
    nodes: int | None
    transport: ProvenTransport
    channels: dict[str, int]
    rails_per_host: dict[str, int]
    hosts_per_rail: dict[str, int] = Field(default_factory=dict, description="device -> hosts that used it")
    hosts: list[str] = Field(default_factory=list, description="hosts of the device list")
    nccl_version: str | None
    plugin: str | None
    plugin_path: str | None
    topology_file: str | None
    hcas: list[str]
    checks: list[Check]
    diagnoses: list[Diagnosis] = Field(default=[])
    remarks: list[Remark] = Field(default_factory=list, description="what is unusual and decides nothing")
    more_remarks: int = Field(default=0, description="unusual lines that are not among the remarks")
    environment: dict[str, str] = Field(default={})
    open_files: dict[str, list[str]] = Field(
        default={}, description="limits of a rank, such as `soft 1024, hard 524288` -> its hosts"
    )
    tests_version: str | None = None
    gpu: str | None = None
    expectation: dict[str, Any]
    log_sha256: str
    log_bytes: int
    log_lines: int = 0
    log_date: str | None = Field(default=None, description="the first date in the log, as printed")
    judge: int = Field(default=1, description="version of the gates and expectations that judged")
    busbar_version: str | None = Field(default=None, description="of the busbar that judged")
    simulated: str | None = Field(default=None, description="what the log says was simulated; None: nothing")

    def check(self, name: str) -> Check:
        """The gate NAME. Raises KeyError."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    @property
    def configured(self) -> bool:
        """Whether the expected value of the headline collective was configured, not computed."""
        return "expected_busbw_gbps" in self.expectation


# fields of the verdict that are those of its first collective
OF_HEADLINE = ("busbw_gbps", "expected_gbps", "floor_gbps", "ceiling_gbps", "fraction")


def judge(lines: Iterable[bytes | str], expectation: Expectation, job: JobOutcome | None = None) -> Verdict:
    """Judge a log given as lines."""
    return judge_log(read_lines(lines), expectation, job)


def judge_archive(archive: Archive) -> tuple[ParsedLog, Verdict] | None:
    """Judge the kept log of a measurement from its folder alone; None without the whole log and its record.

    Raises OSError, EOFError and ZstdError for an unreadable log, and ValueError for an unreadable record.
    """
    if archive.complete_log_of is None or "expectation" not in archive.record():
        return None
    record = Record.model_validate(archive.record())
    log = read_lines(archive.log_lines())
    return log, judge_log(log, Expectation.model_validate(record.expectation), record.outcome)


def judge_log(log: ParsedLog, expectation: Expectation, job: JobOutcome | None = None) -> Verdict:
    """Judge a log that was read. JOB: outcome of the job that printed it; None if only a log is given."""
    context, evidence = build(log, expectation, job), log.evidence
    checks = run_all(context)
    diagnoses = diagnose(context, checks)
    headline = next(iter(context.results.values()), None)
    of_headline: dict[str, Any] = {name: getattr(headline, name, None) for name in OF_HEADLINE}
    preambles = [*(r.preamble for r in log.runs), *([log.dangling] if log.dangling is not None else [])]
    listed = next((preamble for preamble in preambles if preamble.ranks), None)
    # of a run without a table the device list says who took part, where it is whole
    alone = listed is not None and {r.rank for r in listed.ranks} == set(range(len(listed.ranks)))
    known = listed if context.ranks is None and alone and not context.has_rows else None
    names = sorted(evidence.network_names)
    edges = Counter({label: counts.count for label, counts in evidence.edges.items()})
    used = Counter(device for devices in evidence.rails.values() for device in devices)
    return Verdict(
        **shared.conclusion(checks),
        **of_headline,
        collectives=context.results,
        ranks=len(known.ranks) if known else context.ranks,
        nodes=len(known.hosts) if known else context.nodes,
        transport=proven_transport(context),
        channels=dict(edges.most_common()),
        rails_per_host={h or "?": len(d) for h, d in sorted(evidence.rails.items())},
        hosts_per_rail={str(device): used[device] for device in sorted(used)},
        hosts=sorted(listed.hosts) if listed else [],
        nccl_version=next(iter(evidence.versions), None),
        plugin=names[0] if len(names) == 1 else next(iter(evidence.networks), None),
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
        gpu=listed.ranks[0].gpu or None if listed else None,
        expectation={
            "reasoning": [
                f"{name}: {line}" for name, each in context.results.items() for line in each.reasoning
            ],
            **context.expectation.model_dump(exclude_none=True),
        },
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
            collective=infer(run).name, line=run.line, rows=points(run), average=run.avg,
            out_of_bounds=run.out_of_bounds,
        )
        for run in log.runs
    ]  # fmt: skip
