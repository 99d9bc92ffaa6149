"""One stage of a diagnosis as a job: its log becomes the results of its groups, block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from busbar.collect.jobwatch import JobWatch, is_worker
from busbar.collect.spec import GRACE_SECONDS
from busbar.collect.watch import phase
from busbar.fabric.localise import Group
from busbar.fabric.measure.plan import Plan
from busbar.fabric.measure.run import run
from busbar.judge import verdict
from busbar.judge.archive import Archive
from busbar.judge.checks import JobOutcome
from busbar.judge.collector import Collector, JobNeverStarted
from busbar.judge.nccl import Expectation, judge_log, read_lines
from busbar.kube import pods as kube_pods
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.wait import Clock, Deadline, ProgressCallback
from busbar.manifests import groups as script
from busbar.manifests import mpijob
from busbar.manifests.nccljob import NcclJob
from busbar.models import StrictModel

# A run that any of these gates fails has no number that counts.
_NEEDED = ("source", "collective", "ranks", "completeness", "correctness")
SILENT = "its worker is not responding to ssh"


class Result(StrictModel):
    """Of one group: GB/s of bus bandwidth, or None and the reason."""

    busbw: float | None
    reason: str = ""


class StageVerdict(verdict.Verdict):
    """What is kept beside the log: whether the stage came to its end, and what its groups gave."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    results: dict[str, Result]


class StageLog:
    """Reads the log of a stage line by line.

    `results` by the name of the group. `absent`: node -> why it has no worker; `why_absent` is asked for that
    once, with the nodes. `hcas`: their names by rail, as NCCL printed them first.
    """

    def __init__(
        self, groups: Sequence[Group], job: NcclJob, why_absent: Callable[[list[str]], dict[str, str]]
    ) -> None:
        self.results: dict[str, Result] = {}
        self.absent: dict[str, str] = {}
        self.hcas: tuple[str, ...] = ()
        self._groups = {group.name: group for group in groups}
        self._job = job
        self._why_absent = why_absent
        self._present: set[str] = set()
        self._name = ""
        self._block: list[bytes] = []

    def line(self, line: bytes) -> Group | None:
        """Take one line; the group that has ended with it, if one has."""
        text = line.decode("utf-8", "replace").strip()
        if text.startswith(script.GROUP):
            name, _, what = text.removeprefix(script.GROUP).partition(" ")
            return self._marker(name, what)
        if self._name:
            self._block.append(line)
        elif text.startswith(script.WORKER) and script.PLACED in text:
            self._present.add(text.partition(script.PLACED)[2])
        elif text.endswith(script.ANSWERS) and (
            missing := [n for n in self._job.nodes if n not in self._present]
        ):
            self.absent = self._why_absent(missing)
        return None

    def _marker(self, name: str, what: str) -> Group | None:
        if what == script.BEGINS:
            self._name, self._block = name, []
            return None
        group = self._groups.get(name) if name == self._name else None
        if group:
            self._end(group, what)
        self._name = ""
        return group

    def _end(self, group: Group, what: str) -> None:
        if what.startswith(script.NOT_RUN):
            # With a worker that runs and is not responding it is bad; any other one is not known.
            if any(self.absent.get(node) == SILENT for node in group.nodes):
                self.results[group.name] = Result(busbw=None, reason=SILENT)
            return
        found = self._judged(group)
        if what.startswith(script.TIMED_OUT):
            found = Result(busbw=None, reason=what)
        elif not what.startswith(f"{script.ENDED} 0 "):
            found = Result(busbw=None, reason=found.reason or what.partition(" after ")[0])
        self.results[group.name] = found

    def _judged(self, group: Group) -> Result:
        """What the block says. A gate that lacks what is not printed here does not count."""
        log = read_lines(self._block)
        self.hcas = self.hcas or next(iter(log.evidence.hcas_of_host.values()), ())
        expectation = Expectation(
            nodes=len(group.nodes),
            gpus_per_node=self._job.slots_per_worker if group.rail is None else 1,
            collectives=["all_reduce"],
            max_bytes=self._job.max_bytes,
        )
        verdict = judge_log(log, expectation)
        failed = next(
            (each for each in verdict.checks if each.name in _NEEDED and each.status == "fail"), None
        )
        known = next((each.name for each in verdict.diagnoses if each.severity == "fatal"), "")
        reason = known or (f"{failed.name}: {failed.reason}" if failed else "")
        return Result(busbw=None if failed else verdict.busbw_gbps, reason=reason)


class StageWatch(JobWatch):
    """The job of a stage: it starts without workers that cannot.

    `kept_waiting`: node -> why its worker does not run, where the launcher could not start and others run.
    """

    def __init__(
        self, api: Api, namespace: str, name: str, deadline: Deadline, progress: ProgressCallback
    ) -> None:
        super().__init__(api, namespace, name, deadline, progress)
        self.kept_waiting: dict[str, str] = {}
        self._workers_since: float | None = None

    def why_absent(self, nodes: list[str]) -> dict[str, str]:
        """Why each of these nodes has no worker that answers, from the pods as they are now."""
        try:
            workers = [pod for pod in self._pods() if is_worker(pod)]
            placed = {pod["spec"].get("nodeName"): pod for pod in workers}
            return {node: self._why(placed.get(node, placed.get(None))) for node in nodes}
        except ApiError as error:
            return dict.fromkeys(nodes, f"its worker is not responding, and its pod cannot be read: {error}")

    def _rejected(self, pods: Sequence[JsonObject]) -> list[JsonObject]:
        return [] if self._was_started_again else super()._rejected(pods)

    def _give_up(self, reason: str) -> None:
        self._was_started_again = True  # the stage starts without these workers

    def _why(self, pod: JsonObject | None) -> str:
        if pod is None:
            return "it has no worker"
        if phase(pod) == "Running" and kube_pods.readiness([pod])[0]:
            return SILENT
        return "; ".join(self.findings([pod])) or f"its pod is {phase(pod)} after {script.WORKER_SECONDS} s"

    def _raise_if_it_cannot_start(
        self, job: JsonObject, pods: list[JsonObject], seen: list[JsonObject]
    ) -> None:
        workers = [pod for pod in pods if is_worker(pod)]
        launchers = [pod for pod in pods if not is_worker(pod)]
        try:
            super()._raise_if_it_cannot_start(job, launchers, seen)
            self._raise_if_only_workers_start(workers, launchers)
        except JobNeverStarted:
            why = {pod["spec"].get("nodeName"): self._why(pod) for pod in workers}
            missing = {node: reason for node, reason in why.items() if node and reason != SILENT}
            # Where none runs it is not the nodes.
            self.kept_waiting = missing if len(missing) < len(why) else {}
            raise

    def _raise_if_only_workers_start(self, workers: list[JsonObject], launchers: list[JsonObject]) -> None:
        """As a worker: a launcher on a node whose runtime hangs has no condition that says so."""
        now = self.deadline.clock.now()
        if not kube_pods.readiness(workers)[0]:
            self._workers_since = None
        elif self._workers_since is None:
            self._workers_since = now
        elif now - self._workers_since >= script.WORKER_SECONDS:
            why = f"workers run, and the launcher has not started after {script.WORKER_SECONDS} s"
            raise JobNeverStarted([why, *self.findings(launchers)])


class StageCollector(Collector[StageLog, StageVerdict]):
    """Follows the job of a stage. `log` has what is known so far, also after an interruption."""

    def __init__(
        self,
        watch: StageWatch,
        folder: Path,
        progress: ProgressCallback,
        groups: Sequence[Group],
        log: StageLog,
    ) -> None:
        super().__init__(watch, Archive(folder), progress)
        self._groups = groups
        self.log = log

    def read(self, lines: Iterable[bytes]) -> StageLog:
        left = Counter(group.round for group in self._groups)
        for line in lines:
            if group := self.log.line(line):
                left[group.round] -= 1
                # The output of a round comes at once, at its end.
                if not left[group.round]:
                    done = len(self._groups) - left.total()
                    self.progress(f"stage {group.stage}: {done} of {len(self._groups)} groups have run")
        return self.log

    def progress_text(self, line: bytes) -> str | None:
        return None

    def judge(self, log: StageLog, outcome: JobOutcome, missing: Sequence[str] = ()) -> StageVerdict:
        reasons = [*missing, *([] if outcome.succeeded else outcome.reasons)]
        if missing:
            # A group without a result may have printed a number that was lost.
            log.results = {name: found for name, found in log.results.items() if found.busbw is not None}
        return StageVerdict(
            verdict="unknown" if reasons else "pass",
            passed=not reasons,
            reasons=reasons,
            results=log.results,
        )

    def report(self, verdict: StageVerdict) -> str:
        return f"{len(verdict.results)} groups have a result"


def run_stage(
    api: Api,
    plan: Plan,
    groups: Sequence[Group],
    folder: Path,
    clock: Clock,
    progress: ProgressCallback,
    keep: Callable[[StageLog], None],
    options: str,
) -> StageVerdict:
    """Run the groups as one job, which is removed afterwards; its log is kept in `folder`.

    `keep` gets what is known at its end, also at that by a signal. `options`, and raises: as
    `busbar.fabric.measure.run.run`.
    """
    job = plan.job
    seconds = job.deadline_seconds + GRACE_SECONDS
    name = mpijob.render(job)["metadata"]["name"]
    watch = StageWatch(api, job.namespace, name, Deadline(clock, seconds), progress)
    log = StageLog(groups, job, watch.why_absent)
    collector = StageCollector(watch, folder, progress, groups, log)
    try:
        return run(api, plan, seconds, collector.run, clock, progress, options)
    finally:
        log.absent = log.absent or watch.kept_waiting
        keep(log)
