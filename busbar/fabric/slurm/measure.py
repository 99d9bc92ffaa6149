"""From a pool's nodes to a verdict: one job of Slurm, whose whole log is judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from busbar.collect.collector import row_text
from busbar.collect.spec import settings_with
from busbar.fabric.measure.records import append
from busbar.fabric.slurm.job import JobSpec, SlurmJob
from busbar.fabric.slurm.reach import Reach
from busbar.judge.archive import JOB, Archive, Record
from busbar.judge.checks import JobOutcome
from busbar.judge.collector import Collector
from busbar.judge.nccl import Expectation, Verdict, judge_log, read_lines
from busbar.judge.nccl.log.reader import ParsedLog
from busbar.judge.nccl.report.html import Origin, write_html
from busbar.kube.wait import Clock, ProgressCallback
from busbar.outputs.contract import summarize


class MeasureSpec(JobSpec):
    """A measurement. `hostnames`: node -> what its ranks call their host. `folder`: of log and verdict."""

    hostnames: dict[str, str]
    folder: str
    expectation: dict[str, Any]


class _Collector(Collector[ParsedLog, Verdict]):
    """One run of the command."""

    read = staticmethod(read_lines)
    progress_text = staticmethod(row_text)
    cause_of_loss = ": the job has written them, and they are not in its log. Fix: df -h on the batch host"

    def __init__(
        self, spec: MeasureSpec, pool: str, job: SlurmJob, archive: Archive, progress: ProgressCallback
    ) -> None:
        super().__init__(job, archive, progress)
        self._spec, self._pool, self._slurm = spec, pool, job
        self._outcome = JobOutcome(None)

    def judge(self, log: ParsedLog, outcome: JobOutcome, missing: Sequence[str] = ()) -> Verdict:
        log.truncated = "; ".join(missing) or log.truncated
        self._outcome, nodes = outcome, self._slurm.nodes
        of_nodes = {"nodes": len(nodes), "hosts": [self._spec.hostnames[name] for name in nodes]}
        verdict = judge_log(log, Expectation.model_validate({**self._spec.expectation, **of_nodes}), outcome)
        if outcome.succeeded is not None:
            return verdict
        # A job that was ended from outside says nothing of the fabric, whatever part of its log exists.
        reasons = [
            *(f"job: {reason}" for reason in outcome.reasons),
            *(f"source: {part}" for part in missing),
        ]
        return verdict.model_copy(update={"verdict": "unknown", "passed": False, "reasons": reasons})

    def report(self, verdict: Verdict) -> str:
        origin = Origin.of(str(self.archive.log), f" of Slurm job {self._slurm.job_id or self._spec.job}")
        write_html(verdict, self.archive.report, origin)
        busbw = "no bandwidth" if verdict.busbw_gbps is None else f"{verdict.busbw_gbps:g} GB/s"
        return f"{busbw}; report: {self.archive.report}"

    def record(self) -> Record:
        """The record of this measurement, as one of an update."""
        spec = self._spec
        settings = {JOB: spec.job, "partition": spec.partition}
        return Record(
            job_uid=spec.job,
            pool=self._pool,
            kind="update",
            folder=spec.folder,
            nodes=tuple(self._slurm.nodes),
            measured_at=self._slurm.submitted,
            settings=dict(settings_with(spec.expectation, settings)),
            expectation=spec.expectation,
            outcome=self._outcome,
            complete=self.archive.complete_log_of == spec.job,
        )


def keep(found: dict[str, Any], of_pool: Path, progress: ProgressCallback, **about: str) -> dict[str, Any]:
    """Add a measurement to the history in `of_pool`, its pool's folder, and return it without the record.

    `about`: fields of the record. A job that was never submitted is not one.
    """
    if (record := found.get("record")) and record["measured_at"]:
        append(of_pool, {**found, "record": {**record, **about}}, progress)
    return {key: value for key, value in found.items() if key != "record"}


def measure(
    spec: MeasureSpec,
    pool: str,
    nodes: Sequence[str],
    reach: Reach,
    clock: Clock,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Measure these nodes of a pool. A job that has not ended when it returns or raises is cancelled.

    Returns the verdict in short (outputs.contract) with its record; all the rest is kept in the folder.
    """
    archive = Archive(Path(spec.folder))
    archive.folder.mkdir(parents=True, exist_ok=True)
    job = SlurmJob(spec, nodes, reach, archive.folder, clock, progress)
    try:
        collector = _Collector(spec, pool, job, archive, progress)
        verdict = collector.run()
    finally:
        job.suspend()
    short = summarize(verdict.model_dump(mode="json"), record=collector.record())
    return {**short, **({"nodes_measured": job.nodes} if verdict.ranks else {})}
