"""From a running MPIJob to a verdict: watch the job, follow and judge the log, keep the result."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from busbar.collect.busy import Kept
from busbar.collect.jobwatch import JobWatch
from busbar.collect.result import Results
from busbar.collect.spec import CollectSpec
from busbar.judge.archive import Archive, JobOutcome, Record
from busbar.judge.collector import Collector, JobNeverStarted
from busbar.judge.nccl import Expectation, Verdict, judge_log, read_lines
from busbar.judge.nccl.expected import JUDGE
from busbar.judge.nccl.log.clean import clean
from busbar.judge.nccl.log.patterns import ROW, VALUE
from busbar.judge.nccl.log.reader import ParsedLog
from busbar.judge.nccl.report.html import Origin, write_html
from busbar.judge.nccl.units import size
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.nodes import record_event
from busbar.kube.wait import Clock, Deadline, ProgressCallback
from busbar.text import counted


@dataclass(frozen=True)
class Collected:
    """`verdict`: the JSON object of judge/nccl/verdict.py. `record`: None without a job that busbar rendered.

    `config_map`: NAMESPACE/NAME of both, None if not stored.
    """

    verdict: dict[str, Any]
    record: Record | None = None
    config_map: str | None = None


def collect(
    api: Api,
    spec: CollectSpec,
    clock: Clock,
    progress: ProgressCallback,
    refuse: Callable[[Verdict], None] = lambda verdict: None,
    previous: JsonObject | None = None,
    **about: str,
) -> Collected:
    """The verdict on the job, with the record of it.

    `about`: `pool` and `kind` of the record, and its `folder` where that is not the one of the spec. The
    record of the kind `run` is not stored in the cluster. `refuse` gets a new verdict before it is told or
    stored; what it raises is raised here. `previous`: the result of a former run of the command on this job
    and expectation (busbar.outputs.contract.previous_result).

    A job that cannot start, fails, or does not end in time has a verdict too, and it is not a pass. Raises
    ApiError or Unreachable where nothing is known: the API refuses, or does not respond until the deadline.
    The same command can then be run again, because the log is still in the launcher's pod. Raises NoVerdict
    where starting kubelets have rejected the workers twice; the same command starts the job again. Raises
    Kept where a former verdict stays: the GPUs are held, or neither the job's log nor its verdict is found.
    """
    collector = _Collector(api, spec, clock, progress, refuse, previous, about)
    verdict = collector.run().model_dump(mode="json")
    return Collected(verdict, collector.record, collector.config_map)


def row_text(line: bytes) -> str | None:
    """`8 GiB: 390.3 GB/s out of place, 390.2 GB/s in place` for a complete row of a table, else None."""
    found = ROW.search("\n".join(clean(line.decode("utf-8", "replace")) or []))
    if not found:
        return None
    values = found[4].split()[-8:]
    if len(values) < 8 or not all(VALUE.match(value) for value in values):
        return None
    return f"{size(int(found[1]))}: {values[2]} GB/s out of place, {values[6]} GB/s in place"


class NcclCollector(Collector[ParsedLog, Verdict]):
    """A collector of measurements."""

    read = staticmethod(read_lines)
    progress_text = staticmethod(row_text)

    @property
    @abstractmethod
    def origin(self) -> str:
        """The job that printed the log, for the report."""

    def report(self, verdict: Verdict) -> str:
        write_html(verdict, self.archive.report, Origin.of(str(self.archive.log), f" of {self.origin}"))
        busbw = "no bandwidth" if verdict.busbw_gbps is None else f"{verdict.busbw_gbps:g} GB/s"
        return f"{busbw}; report: {self.archive.report}"


class _Collector(NcclCollector):
    """One run of the command."""

    cause_of_loss = (
        ": the kubelet has probably rotated the log faster than it was read. Fix: raise "
        "container-log-max-size in the kubelet-arg of k3s.agent_args and raise validation.run"
    )

    def __init__(
        self,
        api: Api,
        spec: CollectSpec,
        clock: Clock,
        progress: ProgressCallback,
        refuse: Callable[[Verdict], None],
        previous: JsonObject | None,
        about: Mapping[str, str],
    ) -> None:
        deadline = Deadline(clock, spec.deadline_seconds)
        self.watch = JobWatch(api, spec.namespace, spec.job, deadline, progress)
        super().__init__(self.watch, Archive(Path(spec.folder)), progress)
        self._api = api
        self._spec = spec
        self._refuse = refuse
        self._previous = previous
        self._about = {"kind": "update", "folder": spec.folder, **about}
        self._results = Results(api, spec.namespace)
        self.record: Record | None = None
        self.config_map: str | None = None

    @property
    def origin(self) -> str:
        return f"MPIJob {self._spec.namespace}/{self._spec.job}"

    def judge(self, log: ParsedLog, outcome: JobOutcome, missing: Sequence[str] = ()) -> Verdict:
        log.truncated = "; ".join(missing) or log.truncated
        verdict = judge_log(log, Expectation.model_validate(self._spec.expectation), outcome)
        self._refuse(verdict)
        banners = (run.preamble.banner for run in log.runs)
        banner = next(filter(None, banners), None)
        iterations, warmup = (banner.iterations, banner.warmup) if banner else (None, None)
        self.record = self.watch.record(
            self._spec.expectation, iterations, warmup, outcome=outcome, **self._about
        )
        return verdict

    def never_started(self, never: JobNeverStarted) -> JobOutcome:
        return JobOutcome(self.outcome_or_suspend(wait_seconds=0).succeeded, never.reasons)

    def stored(self, uid: str) -> Verdict | None:
        if self._about["kind"] == "run":
            return None
        record, found = self._results.read(uid) or (None, None)
        if not (record and found and record.complete and record.expectation == self._spec.expectation):
            return None
        verdict = _verdict(found)
        if verdict is None or verdict.verdict == "unknown":
            return None
        if verdict.judge != JUDGE and self.archive.complete_log_of == uid:
            return None  # this judge may find another one
        # The files are written here.
        here = {"folder": self._about["folder"]}
        self.record = record.model_copy(update=here)
        self.config_map = self._results.address(uid)
        self.progress(f"{self._spec.job}: verdict {_by(verdict.judge)} found in the cluster")
        return verdict

    def nothing_kept(self) -> None:
        former = self._previous
        if former is None and self.watch.found is None and self._about["kind"] == "update":
            former = self._results.of_job(self._spec.job, self._spec.expectation)
        if former:
            by = _by(former.get("judge"))
            self.progress(f"{self._spec.job}: its log is not kept, so the former verdict {by} stays")
            raise Kept(former)

    def store(self, uid: str, verdict: Verdict) -> None:
        """Store the record beside the log and in the cluster; a failure there is a message."""
        if self.record is None:
            return
        if self.archive.complete_log_of == uid:
            self.record = self.record.model_copy(update={"complete": True})
            self.archive.mark_complete(uid, self.record.model_dump(mode="json"))
        if self._about["kind"] == "run":
            return
        address = self._results.address(uid)
        try:
            self._results.write(self.record, verdict.model_dump(mode="json"))
        except (ApiError, ValueError) as error:
            self.progress(f"ConfigMap {address} could not be written: {error}")
            return
        self.config_map = address
        self._tell_nodes(self.record, verdict)

    def _tell_nodes(self, record: Record, verdict: Verdict) -> None:
        """Record the verdict as an Event on each Node of the job."""
        busbw = "" if verdict.busbw_gbps is None else f", {verdict.busbw_gbps:g} GB/s"
        of = f"NCCL validation of pool {record.pool} on {counted(len(record.nodes), 'node')}"
        text = "; ".join([f"{of}: {verdict.verdict}{busbw}", *verdict.reasons])
        for node in record.nodes:
            reason = f"Nccl{verdict.verdict.capitalize()}"
            if not record_event(self._api, node, reason, text, self.progress, is_bad=not verdict.passed):
                break


def _by(judge: int | None) -> str:
    return f"of judge {judge}" + ("" if judge == JUDGE else f" (this busbar has judge {JUDGE})")


def _verdict(stored: Mapping[str, Any]) -> Verdict | None:
    """A stored verdict; None where another version of busbar wrote it in another format."""
    try:
        return Verdict.model_validate(stored)
    except ValidationError:
        return None
