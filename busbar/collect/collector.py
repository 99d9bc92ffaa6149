"""From a running MPIJob to a verdict: watch the job, follow and judge the log, keep the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from busbar.collect.jobwatch import JobWatch, Rejected
from busbar.collect.result import ResultStore
from busbar.collect.spec import CollectSpec
from busbar.judge.archive import Archive
from busbar.judge.checks import JobOutcome
from busbar.judge.collector import Collector, JobNeverStarted
from busbar.judge.nccl import Expectation, Verdict, judge_log, read_lines
from busbar.judge.nccl.log.clean import clean
from busbar.judge.nccl.log.patterns import ROW, VALUE
from busbar.judge.nccl.log.reader import ParsedLog
from busbar.judge.nccl.report.html import Origin, write_html
from busbar.judge.nccl.schema import JUDGE
from busbar.judge.nccl.units import size
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.wait import Clock, Deadline, ProgressCallback


@dataclass(frozen=True)
class Collected:
    """`verdict`: the JSON object of judge/nccl/verdict.py. `config_map`: NAMESPACE/NAME, None if not stored.

    `measured_at`: when the job was created, as Kubernetes writes it (UTC); None without a job. `job`: its
    object in the cluster, if any. `is_rejected`: nothing was measured, because kubelets that were starting
    have rejected the workers; the same command starts the job again.
    """

    verdict: dict[str, Any]
    config_map: str | None = None
    measured_at: str | None = None
    job: JsonObject | None = None
    is_rejected: bool = False


def collect(
    api: Api,
    spec: CollectSpec,
    clock: Clock,
    progress: ProgressCallback,
    refuse: Callable[[Verdict], None] = lambda verdict: None,
) -> Collected:
    """The verdict on the job, and where in the cluster it is stored.

    `refuse` gets a new verdict before it is told or stored; what it raises is raised here.

    A job that cannot start, fails, or does not end in time has a verdict too, and it is not a pass. Raises
    ApiError or Unreachable where nothing is known: the API refuses, or does not respond until the deadline.
    The same command can then be run again, because the log is still in the launcher's pod.
    """
    collector = _Collector(api, spec, clock, progress, refuse)
    verdict = collector.run()
    watch = collector.watch
    found = verdict.model_dump(mode="json")
    return Collected(found, collector.config_map, watch.created_at, watch.found, collector.is_rejected)


def row_text(line: bytes) -> str | None:
    """`8 GiB: 390.3 GB/s out of place, 390.2 GB/s in place` for a complete row of a table, else None."""
    found = ROW.search("\n".join(clean(line.decode("utf-8", "replace")) or []))
    if not found:
        return None
    values = found[4].split()[-8:]
    if len(values) < 8 or not all(VALUE.match(value) for value in values):
        return None
    return f"{size(int(found[1]))}: {values[2]} GB/s out of place, {values[6]} GB/s in place"


class _Collector(Collector[ParsedLog, Verdict]):
    """One run of the command."""

    read = staticmethod(read_lines)
    progress_text = staticmethod(row_text)
    cause_of_loss = (
        ": the kubelet has probably rotated the log faster than it was read. Fix: raise "
        "container-log-max-size in the kubelet-arg of k3s.agent_args and increase validation.run"
    )

    def __init__(
        self,
        api: Api,
        spec: CollectSpec,
        clock: Clock,
        progress: ProgressCallback,
        refuse: Callable[[Verdict], None],
    ) -> None:
        deadline = Deadline(clock, spec.deadline_seconds)
        self.watch = JobWatch(api, spec.namespace, spec.job, deadline, progress)
        super().__init__(self.watch, Archive(Path(spec.folder)), progress)
        self._api = api
        self._spec = spec
        self._refuse = refuse
        self.config_map: str | None = None
        self.is_rejected = False

    def judge(self, log: ParsedLog, outcome: JobOutcome, missing: Sequence[str] = ()) -> Verdict:
        log.truncated = "; ".join(missing) or log.truncated
        verdict = judge_log(log, Expectation.model_validate(self._spec.expectation), outcome)
        self._refuse(verdict)
        return verdict

    def report(self, verdict: Verdict) -> str:
        job = f"{self._spec.namespace}/{self._spec.job}"
        write_html(verdict, self.archive.report, Origin.of(str(self.archive.log), f" of MPIJob {job}"))
        busbw = "no bandwidth" if verdict.busbw_gbps is None else f"{verdict.busbw_gbps:g} GB/s"
        return f"{busbw}; report: {self.archive.report}"

    def never_started(self, never: JobNeverStarted) -> JobOutcome:
        self.is_rejected = isinstance(never, Rejected)
        return JobOutcome(self.outcome_or_suspend(wait_seconds=0).succeeded, never.reasons)

    def stored(self, uid: str) -> Verdict | None:
        store = self._store(uid)
        stored = store.read()
        verdict = _verdict(stored) if stored else None
        if verdict and verdict.judge != JUDGE and self.archive.complete_log_of == uid:
            return None  # this busbar may find another one
        if verdict:
            self.progress(f"{self._spec.job}: verdict found in ConfigMap {store.name}")
            self.config_map = store.address
        return verdict

    def store(self, uid: str, verdict: Verdict) -> None:
        """Store a copy in the cluster; a failure is a message."""
        store = self._store(uid)
        try:
            store.write(verdict.model_dump(mode="json"))
        except (ApiError, ValueError) as error:
            self.progress(f"ConfigMap {store.name} could not be written: {error}")
            return
        self.config_map = store.address

    def _store(self, uid: str) -> ResultStore:
        spec = self._spec
        return ResultStore(self._api, spec.namespace, spec.job, uid, spec.expectation)


def _verdict(stored: Mapping[str, Any]) -> Verdict | None:
    """A stored verdict; None where another version of busbar wrote it in another format."""
    try:
        return Verdict.model_validate(stored)
    except ValidationError:
        return None
