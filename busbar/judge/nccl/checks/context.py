"""The input of all gates: the parsed log, the expectation, the tables to be judged, and the job's outcome."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from busbar.judge.checks import JobOutcome, Status
from busbar.judge.nccl.checks.algorithm import algorithm_used
from busbar.judge.nccl.checks.result import CollectiveResult
from busbar.judge.nccl.expected.expectation import Expectation
from busbar.judge.nccl.expected.system import board
from busbar.judge.nccl.log.binding import Proof, short
from busbar.judge.nccl.log.collective import infer
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.reader import ParsedLog
from busbar.judge.nccl.log.records import Preamble, Rank, Run


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one collective's bandwidth, and the table that decided it."""

    status: Status
    code: str
    reason: str
    result: CollectiveResult
    run: Run | None


@dataclass
class Context:
    """The gates' input. `tables`: wanted collective -> its tables with rows. `nodes`: of the device list."""

    log: ParsedLog
    expectation: Expectation
    job: JobOutcome | None = None  # None: only a log was given
    tables: dict[str, list[Run]] = field(default_factory=dict)
    nodes: int | None = None
    ranks: int | None = None
    nodes_given: bool = False
    findings: dict[str, Finding] = field(default_factory=dict)  # bandwidth of each wanted collective
    passed: frozenset[str] = frozenset()  # gates that passed before the one that is run
    proof: Proof | None = None  # of the only table; None: all tables are looked at

    @property
    def evidence(self) -> Evidence:
        """The evidence from NCCL's messages, for the only table or in the whole log."""
        return self.log.evidence if self.proof is None else self.proof.own

    @cached_property
    def each(self) -> list[Context]:
        """One context per judged table, with the evidence on it; without tables, only this context."""
        if self.proof is not None:
            return [self]
        proofs = {id(run): proof for run, proof in zip(self.log.runs, self.log.proofs, strict=True)}
        tables = [
            replace(self, tables={name: [run]}, proof=proofs[id(run)])
            for name, runs in self.tables.items()
            for run in runs
        ]
        return tables or [self]

    @property
    def judged(self) -> list[Run]:
        """All tables that are judged."""
        return [r for runs in self.tables.values() for r in runs]

    @property
    def listed(self) -> list[Rank]:
        """The device lists of all tables that are judged."""
        return [rank for run in self.judged for rank in run.preamble.ranks]

    @property
    def hosts(self) -> set[str]:
        """Hosts of these lists, without their domains."""
        return {short(rank.host) for rank in self.listed}

    @property
    def is_whole(self) -> bool:
        """Whether the log has everything from the arguments to the summary; an excerpt may lack lines."""
        runs = self.judged
        return bool(runs) and all(
            r.preamble.banner is not None and r.closed and r.preamble.ranks for r in runs
        )

    @property
    def has_rows(self) -> bool:
        """Whether any table has a row."""
        return any(r.rows for r in self.log.runs)

    @property
    def domains(self) -> int | None:
        """Number of NVLink domains; None if the number of nodes is unknown."""
        system = self.expectation.system
        return system.domains if system is not None else None


def build(log: ParsedLog, expectation: Expectation, job: JobOutcome | None = None) -> Context:
    """Choose the tables, and complete the expectation from the device list."""
    named = [(infer(r).name, r) for r in log.runs if r.rows]
    wanted = list(expectation.collectives)
    if not wanted:
        wanted = list(dict.fromkeys(name for name, _ in named if name is not None))
    tables = {w: [r for name, r in named if name == w] for w in wanted}
    listed = next((r.preamble for r in _all(tables) or log.runs if r.preamble.ranks), None)
    given = expectation.nodes is not None
    if listed is None or _is_part(listed):
        return Context(log, expectation, job, tables, nodes_given=given)
    hosts, ranks = len(listed.hosts), len(listed.ranks)
    if ranks % hosts == 0:
        expectation = expectation.with_nodes(hosts, ranks // hosts, board({r.gpu for r in listed.ranks}))
    expectation = _with_algorithm(expectation, log, tables.get("all_reduce", []))
    return Context(log, expectation, job, tables, hosts, ranks, given)


def _with_algorithm(expectation: Expectation, log: ParsedLog, runs: list[Run]) -> Expectation:
    """EXPECTATION with the algorithm that the log proves, if it leaves the choice to NCCL."""
    system = expectation.system
    if expectation.algorithm != "auto" or system is None or not runs:
        return expectation
    used = algorithm_used(log.evidence, runs, system)
    if used is None or (used == "nvls" and system.domains > 2):
        return expectation
    return expectation.model_copy(update={"algorithm": used})


def _is_part(listed: Preamble) -> bool:
    """Whether only one host is left of a longer device list, so that others may have taken part."""
    numbers = {r.rank for r in listed.ranks}
    return len(listed.hosts) == 1 and len(numbers) <= max(numbers)


def _all(tables: dict[str, list[Run]]) -> list[Run]:
    return [r for runs in tables.values() for r in runs]
