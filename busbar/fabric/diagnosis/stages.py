"""The three stages of a diagnosis, each one job, whose log becomes the results of its groups.

What is known is kept after each stage, and continued. A node that cannot be measured is left out, with the
reason: it is never slow. A `Backend` starts the jobs: `kubernetes` has that of a stack of K3s.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from busbar.config import Worker
from busbar.config.cluster import MeasuredPool, NcclSettings
from busbar.fabric.localise import Group, Kind, Known, Places, Stage, expected_busbw, plan
from busbar.fabric.localise.groups import GOOD
from busbar.judge.archive import Archive, JobOutcome
from busbar.judge.checks import Overall, Verdict
from busbar.judge.collector import Collector, Job
from busbar.judge.nccl import Expectation, judge_log, read_lines
from busbar.kube.wait import Clock, Deadline, ProgressCallback
from busbar.manifests import groups as script
from busbar.manifests import nccljob
from busbar.manifests.names import digest
from busbar.manifests.ncclrun import NcclRun
from busbar.writing import write_whole

Run = TypeVar("Run", bound=NcclRun)
Settings = TypeVar("Settings", bound=NcclSettings)

STAGES: tuple[Stage, ...] = ("A", "B", "C")
STATE = "state.json"
# Results of an earlier call say little about the fabric of another day.
CONTINUED_SECONDS = 24 * 3600
# Less is not worth the start of a job.
FEWEST_SECONDS = 60
DEADLINE_SECONDS = 3600
_OVER = "the time of the diagnosis is over"
# A run that any of these gates fails has no number that counts.
_NEEDED = ("source", "collective", "ranks", "completeness", "correctness")
SILENT = "its worker is not responding to ssh"

WhyAbsent = Callable[[list[str]], dict[str, str]]
"""Nodes -> why each of them has no worker."""


class Result(NamedTuple):
    """One group's bus bandwidth in GB/s, or None and the reason."""

    busbw: float | None
    reason: str = ""


@dataclass
class StageLog:
    """Reads the log of a stage line by line. `nodes`, `slots`, `max_bytes`: of its job; slots are of a node.

    `group_of`: the group of a name in the log, None for one that the job does not have. `absent`: node -> why
    it has no worker; `why_absent` is asked for that once, with the nodes. `hcas`: their names by rail, as
    NCCL printed them first.
    """

    group_of: Callable[[str], Group | None]
    nodes: Sequence[str]
    slots: int
    max_bytes: int
    why_absent: WhyAbsent
    results: dict[Group, Result] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    hcas: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._silent, self._name = [*self.nodes], ""
        self._block: list[bytes] = []

    def line(self, line: bytes) -> Group | None:
        """Take one line; the group that has ended with it, if one has."""
        text = line.decode("utf-8", "replace").strip()
        if not text.startswith(script.GROUP):
            if self._name:
                self._block.append(line)
            elif text.startswith(script.WORKER) and script.PLACED in text:
                placed = text.partition(script.PLACED)[2]
                self._silent = [node for node in self._silent if node != placed]
            elif text.endswith(script.ANSWERS) and self._silent:
                self.absent = self.why_absent(self._silent)
            return None
        name, _, what = text.removeprefix(script.GROUP).partition(" ")
        if what == script.BEGINS:
            self._name, self._block = name, []
            return None
        group = self.group_of(name) if name == self._name else None
        self._name = ""
        if group and (found := self._result(group, what)):
            self.results[group] = found
        return group

    def _result(self, group: Group, what: str) -> Result | None:
        """The result of a group whose block has ended so; None where it is not known."""
        if what.startswith(script.NOT_RUN):
            # With a worker that runs and is not responding it is bad; any other one is not known.
            is_silent = any(self.absent.get(node) == SILENT for node in group.nodes)
            return Result(None, SILENT) if is_silent else None
        log = read_lines(self._block)
        self.hcas = self.hcas or next(iter(log.evidence.hcas_of_host.values()), ())
        if what.startswith(script.TIMED_OUT):
            return Result(None, what)
        expectation = Expectation(
            nodes=len(group.nodes),
            gpus_per_node=self.slots if group.rail is None else 1,
            collectives=["all_reduce"],
            max_bytes=self.max_bytes,
        )
        found = judge_log(log, expectation)
        # A gate that lacks what is not printed here does not count.
        failed = [each for each in found.checks if each.name in _NEEDED and each.status == "fail"]
        reasons = [each.name for each in found.diagnoses if each.severity == "fatal"]
        reasons += [f"{each.name}: {each.reason}" for each in failed]
        if not what.startswith(f"{script.ENDED} 0 "):
            return Result(None, next(iter(reasons), what.partition(" after ")[0]))
        return Result(None if failed else found.busbw_gbps, next(iter(reasons), ""))


@dataclass(frozen=True)
class Work:
    """Groups of a stage, for one job. `hcas`: by rail, where groups use one. `folder`: of its log."""

    groups: Sequence[Group]
    seconds: int
    hcas: tuple[str, ...]
    folder: Path

    @property
    def nodes(self) -> list[str]:
        return sorted({node for group in self.groups for node in group.nodes})

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
    def stage(self) -> nccljob.Stage:
        """The values that the script of the job is made from."""
        return nccljob.Stage(tuple(group.name for group in self.groups), self.hcas)


class Backend(Protocol):
    """Runs the stages of a diagnosis on one pool of a cluster."""

    def machines(self, nodes: Sequence[str]) -> Mapping[str, Sequence[str | None]]:
        """Node -> what tells its machine and its boot from others: no result of others is continued."""

    def look(self, nodes: Sequence[str]) -> tuple[Mapping[str, str], Mapping[str, tuple[str, ...]]]:
        """Look at the nodes of the next job. Raises CannotMeasure if no job can run.

        Returns node -> why it cannot be measured now, and node -> what monitors of the cluster say of it.
        """

    def run(self, work: Work, keep: Callable[[StageLog], None]) -> Verdict:
        """Run groups of these nodes as one job, which is gone when this returns or raises; its log is kept.

        `keep` gets what is known at its end, also at that by a signal.
        """


class StageCollector(Collector[StageLog, Verdict]):
    """Follows the job of a stage; its verdict says whether the stage came to its end.

    `log` has what is known so far, also after an interruption.
    """

    def __init__(
        self, job: Job, work: Work, run: NcclRun, why_absent: WhyAbsent, progress: ProgressCallback
    ) -> None:
        super().__init__(job, Archive(work.folder), progress)
        self._groups = work.groups
        by_name = {group.name: group for group in work.groups}
        self.log = StageLog(by_name.get, run.nodes, run.slots_per_worker, run.max_bytes, why_absent)

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

    def judge(self, log: StageLog, outcome: JobOutcome, missing: Sequence[str] = ()) -> Verdict:
        reasons = [*missing, *([] if outcome.succeeded else outcome.reasons)]
        if missing:
            # A group without a result may have printed a number that was lost.
            log.results = {group: found for group, found in log.results.items() if found.busbw is not None}
        verdict: Overall = "unknown" if reasons else "pass"
        return Verdict(schema=1, verdict=verdict, passed=not reasons, reasons=reasons)

    def report(self, verdict: Verdict) -> str:
        return f"{len(self.log.results)} groups have a result"


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The nodes of a pool that a diagnosis is about. `folder`: where logs and results are kept.

    `hardware`: what each of the nodes must have. `places`: node -> rail group; none where no group is known.
    `judged`: nodes that three healthy partners judge whatever their first pairs gave.
    """

    pool: str
    nodes: tuple[str, ...]
    hardware: MeasuredPool
    validation: NcclSettings
    places: Places
    folder: Path
    judged: frozenset[str] = frozenset()


def places_of(workers: Iterable[Worker]) -> Places:
    """Node -> rail group; no nodes where the configuration has none."""
    found = ((worker.name, worker.topology.rail_group) for worker in workers)
    return {name: group for name, group in found if group}


def with_rings(validation: Settings) -> Settings:
    """The validation with rings: their bandwidth follows from the rails of the nodes."""
    return validation.model_copy(update={"algorithm": "ring"})


class State(BaseModel):
    """What is known of a diagnosis: kept in a file, so that it can be continued.

    `planned`: the groups of each stage that was begun. `results`: group, GB/s or None, and why it has none.
    `absent`: node -> why it was not measured. `reported`: node -> what monitors say of it. `hcas`: by rail.
    `seconds` and `node_seconds`: of the jobs. `stopped`: why it ended before its last stage.
    """

    key: str
    began: float
    nodes: list[str]
    planned: dict[Stage, list[Group]] = {}
    results: list[tuple[Group, float | None, str]] = []
    absent: dict[str, str] = {}
    reported: dict[str, tuple[str, ...]] = {}
    hcas: tuple[str, ...] = ()
    seconds: float = 0
    node_seconds: float = 0
    is_over: bool = False
    stopped: str = ""

    @classmethod
    def read(cls, folder: Path) -> State | None:
        """The state that is kept there; None without one, or of another version of busbar."""
        try:
            return cls.model_validate_json((folder / STATE).read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            return None

    def write(self, folder: Path) -> None:
        write_whole(folder / STATE, self.model_dump_json(indent=1) + "\n")

    @property
    def present(self) -> list[str]:
        """The nodes that can be measured."""
        return [node for node in self.nodes if node not in self.absent]

    def left(self, stage: Stage) -> list[Group]:
        """The planned groups that have no result and can have one."""
        done, planned = {group for group, *_ in self.results}, self.planned.get(stage, ())
        return [g for g in planned if g not in done and not self.absent.keys() & set(g.nodes)]

    def add(self, log: StageLog) -> None:
        """What the log of a stage says. A worker that runs and is not responding has bad results."""
        self.results += [(group, found.busbw, found.reason) for group, found in log.results.items()]
        self.absent |= {node: why for node, why in log.absent.items() if why != SILENT}
        self.hcas = self.hcas or log.hcas


def known_of(state: State, scope: Scope, last: Stage = STAGES[-1]) -> Known:
    """The results of the nodes that were measured: of all stages, or of those up to one.

    Left out is what nothing can be compared with, as pairs of few rail groups: it would decide nothing.
    """
    absent = state.absent.keys()
    found = {g: busbw for g, busbw, _ in state.results if g.stage <= last and not absent & {*g.nodes}}
    return comparable(Known(found, expected_of(scope)))


def comparable(known: Known) -> Known:
    """The results that decide something: those of kinds that can be compared."""
    found = known.results
    # A node with no results at all is no evidence against NVLink.
    comparable, some = known.references(), known.with_a_number()
    counted = (g for g in found if g.kind in comparable and (len(g.nodes) > 1 or g.nodes[0] in some))
    return replace(known, results={group: found[group] for group in counted})


def expected_of(scope: Scope) -> dict[Kind, float]:
    """What each kind of group should reach, in GB/s; unknown kinds are left out.

    By the hardware, with rings. A configured value is the pool's whole; one rail has its share of it.
    """
    hardware, validation = scope.hardware, scope.validation
    found = expected_busbw(hardware.expectation(with_rings(validation)))
    first = validation.expected_busbw_gbps if validation.collectives[0] == "all_reduce" else None
    configured = validation.expected_by_collective.get("all_reduce", first)
    if configured is not None:
        # A bandwidth that the gate accepts is good.
        pair = configured * (1 - validation.tolerance) / GOOD
        found["in_group"] = min(pair, found.get("in_group", pair))
        found.setdefault("rail_in_group", found["in_group"] / hardware.rails)
    return found


@dataclass
class Diagnosis:
    backend: Backend
    scope: Scope
    clock: Clock
    progress: ProgressCallback
    stages: tuple[Stage, ...] = STAGES

    def run(self) -> State:
        """Run the stages; `stopped` of what is returned says why some did not run.

        What is known is kept also where it raises, as at a signal. Raises as the runner does.
        """
        state = self._state()
        deadline = Deadline(self.clock, DEADLINE_SECONDS)
        try:
            for stage in self.stages:
                if not state.planned:
                    self._look(state, state.nodes)
                while not state.stopped and (state.left(stage) or self._has_more(state, stage)):
                    self._stage(state, stage, deadline)
            state.is_over = not state.stopped
        finally:
            state.write(self.scope.folder)
        return state

    def _state(self) -> State:
        scope = self.scope
        key = digest(
            {
                "nodes": dict(self.backend.machines(scope.nodes)),
                "judged": sorted(scope.judged),
                "validation": scope.validation.model_dump(mode="json", exclude={"diagnose"}),
                "hardware": scope.hardware.model_dump(mode="json"),
                "places": dict(scope.places),
            }
        )
        found, now = State.read(scope.folder), time.time()
        if found and found.key == key and not found.is_over and now - found.began < CONTINUED_SECONDS:
            self.progress(
                f"continuing: {len(found.results)} groups have a result, from {scope.folder / STATE}"
            )
            found.stopped = ""
            return found
        return State(key=key, began=now, nodes=list(scope.nodes), hcas=tuple(scope.validation.hcas))

    def _has_more(self, state: State, stage: Stage) -> bool:
        """Plan the stage, or its next runs by those that it has; whether there are some."""
        planned = state.planned.setdefault(stage, [])
        found = [] if stage == "A" and planned else self.groups(state, stage)
        # Results that nothing can be compared with are not known to `plan`, which asks for them again.
        found = [group for group in found if group not in planned]
        planned += found
        return bool(found)

    def folder(self, stage: Stage) -> Path:
        """Where the log of the next job is kept."""
        return self.scope.folder / stage

    def groups(self, state: State, stage: Stage) -> list[Group]:
        """The runs of a stage by what is known; empty where there are no more."""
        places, seed, judged = self.scope.places, int(state.began), self.scope.judged
        others = [node for node in state.present if node not in judged]
        if stage == "A":
            found = [*plan("A", others, places, seed=seed)]
            found += (Group("A", 0, "node", (node,)) for node in state.present if node in judged)
            # One rank alone has no bandwidth.
            return sorted((g for g in found if len(g.nodes) > 1 or self._slots > 1), key=lambda g: g.round)
        known = known_of(state, self.scope, stage)
        # Where the other node was left out, healthy partners judge, as where a pair was not good.
        pairs = (group for group in state.planned["A"] if len(group.nodes) > 1)
        missed = [pair for pair in pairs if state.absent.keys() & {*pair.nodes}]
        missed += (Group("A", 0, "in_group", (node, other)) for node in judged for other in others[:1])
        known = Known({**known.results, **dict.fromkeys(missed)}, known.expected)
        # One rail of a node whose pairs give nothing would give nothing, each time after GROUP_SECONDS.
        some = state.present if stage == "B" else known.with_a_number(2)
        asked = [node for node in state.present if node in some]
        # All rails are tried, where their HCAs are known and each has its GPU.
        rails = self.scope.hardware.rails
        can_be_tried = 1 < rails <= self._slots and len(state.hcas) == rails
        return [*plan(stage, asked, places, known, rails=rails if can_be_tried else 0, seed=seed)]

    @property
    def _slots(self) -> int:
        return self.scope.validation.slots_per_worker or self.scope.hardware.gpus

    def _look(self, state: State, nodes: Iterable[str]) -> None:
        absent, reported = self.backend.look(sorted({*nodes}))
        state.absent |= absent
        state.reported = dict(reported)

    def _stage(self, state: State, stage: Stage, deadline: Deadline) -> None:
        self._look(state, [node for group in state.left(stage) for node in group.nodes])
        if not (groups := state.left(stage)):
            return
        if deadline.left < FEWEST_SECONDS:
            state.stopped = f"{_OVER}: stage {stage} did not run"
            return
        hcas = state.hcas if stage == "C" else ()
        work = Work(groups, int(deadline.left), hcas, self.folder(stage))
        nodes = len(work.nodes)
        self.progress(f"stage {stage}: {len(groups)} groups on {nodes} nodes, {work.seconds} s at most")
        began, absent, results = self.clock.now(), len(state.absent), len(state.results)
        try:
            verdict = self.backend.run(work, state.add)
        finally:
            elapsed = self.clock.now() - began
            state.seconds += elapsed
            state.node_seconds += elapsed * nodes
        # A launcher that could not start where a worker could not either starts on another node.
        again = len(state.results) == results and len(state.absent) > absent
        if (left := state.left(stage)) and not again:
            reasons = "; ".join(verdict.reasons) or _OVER
            state.stopped = f"stage {stage}: {len(left)} of {len(groups)} groups have not run: {reasons}"
