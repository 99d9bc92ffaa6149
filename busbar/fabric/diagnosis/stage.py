"""One stage of a diagnosis as a job: its log becomes the results of its groups, block by block.

A `Runner` starts the job: `busbar.fabric.diagnosis.kubernetes` has that of a stack of K3s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from pydantic import Field

from busbar.fabric.localise import Group
from busbar.judge import verdict
from busbar.judge.archive import Archive
from busbar.judge.checks import JobOutcome
from busbar.judge.collector import Collector, Job
from busbar.judge.nccl import Expectation, judge_log, read_lines
from busbar.kube.wait import ProgressCallback
from busbar.manifests import groups as script
from busbar.manifests.nccljob import Stage
from busbar.manifests.ncclrun import NcclRun
from busbar.models import StrictModel

Run = TypeVar("Run", bound=NcclRun)

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


class Shape(Protocol):
    """The job of a log: its Nodes, the ranks of one, and the size of its messages."""

    @property
    def nodes(self) -> tuple[str, ...]: ...

    @property
    def slots_per_worker(self) -> int: ...

    @property
    def max_bytes(self) -> int: ...


class StageLog:
    """Reads the log of a stage line by line.

    `results` by the name of the group. `absent`: node -> why it has no worker; `why_absent` is asked for that
    once, with the nodes. `hcas`: their names by rail, as NCCL printed them first.
    """

    def __init__(
        self, groups: Sequence[Group], job: Shape, why_absent: Callable[[list[str]], dict[str, str]]
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


@dataclass(frozen=True)
class Work:
    """Groups of a stage, for one job. `hcas`: by rail, where groups use one. `folder`: of its log."""

    groups: Sequence[Group]
    seconds: int
    hcas: tuple[str, ...]
    folder: Path

    @property
    def nodes(self) -> list[str]:
        """The nodes that it holds."""
        return nodes_of(self.groups)

    def run(self, whole: Run) -> Run:
        """The runs of the groups, from the measurement of a pool."""
        return replace(
            whole,
            nodes=tuple(self.nodes),
            collectives=("all_reduce",),
            min_bytes=whole.max_bytes,
            # The lines that a proof needs would be megabytes for hundreds of groups.
            env={**whole.env, "NCCL_DEBUG": "WARN"},
            deadline_seconds=self.seconds,
        )

    @property
    def stage(self) -> Stage:
        """The values that the script of the job is made from."""
        names = tuple(group.name for group in self.groups)
        return Stage(names, self.hcas)


class StagePlan(Protocol):
    """A job on those of some nodes that can be measured now.

    `absent`: node -> why it cannot be. `reported`: node -> what monitors of the cluster say of it.
    """

    @property
    def absent(self) -> Mapping[str, str]: ...

    @property
    def reported(self) -> Mapping[str, tuple[str, ...]]: ...

    def run(self, work: Work, keep: Callable[[StageLog], None]) -> StageVerdict:
        """Run the groups as one job, which is gone when this returns or raises; its log is kept.

        `keep` gets what is known at its end, also at that by a signal.
        """
        ...


class Runner(Protocol):
    """Runs the stages of a diagnosis on one pool of a cluster."""

    def machines(self, nodes: Sequence[str]) -> Mapping[str, Sequence[str | None]]:
        """Node -> what tells its machine and its boot from others: no result of others is continued."""
        ...

    def plan(self, nodes: Sequence[str]) -> StagePlan:
        """Look which of the nodes can be measured now. Raises CannotMeasure if no job can run."""
        ...


def group_begins(line: bytes) -> str:
    """The name of the group whose block begins with this line of a log; empty for other lines."""
    name, _, what = line.decode("utf-8", "replace").strip().removeprefix(script.GROUP).partition(" ")
    return name if line.startswith(script.GROUP.encode()) and what == script.BEGINS else ""


def nodes_of(groups: Iterable[Group]) -> list[str]:
    """The nodes of the groups, sorted."""
    return sorted({node for group in groups for node in group.nodes})


class StageCollector(Collector[StageLog, StageVerdict]):
    """Follows the job of a stage. `log` has what is known so far, also after an interruption."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        progress: ProgressCallback,
        groups: Sequence[Group],
        log: StageLog,
    ) -> None:
        super().__init__(job, Archive(folder), progress)
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
