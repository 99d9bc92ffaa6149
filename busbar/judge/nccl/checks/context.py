"""The input of all gates: the parsed log, the expectation, the tables to be judged, and the job's outcome."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

from pydantic import Field

from busbar.judge import checks
from busbar.judge.checks import JobOutcome, Status, by_status
from busbar.judge.nccl.expected.expectation import Expectation
from busbar.judge.nccl.expected.system import BOARD_GPUS, System, board
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.reader import ParsedLog, Proof, short
from busbar.judge.nccl.log.records import EVIDENCE_WIDTH, LogLine, Measurement, Rank, Run, amount, number
from busbar.judge.nccl.log.tables import infer
from busbar.models import StrictModel

# NVLS since 2.17, its trees between hosts since 2.18 (release notes)
FIRST_NVLS = {1: (2, 17), 2: (2, 18)}
# types that NVLS does not add up: ncclNvlsSupported (NCCL src/include/device.h)
NOT_NVLS_TYPES = re.compile(r"u?int8|char|fp?8")


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version: 2.19.3+cuda12.2 -> (2, 19, 3)."""
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:3])


def algorithm_used(evidence: Evidence, runs: list[Run], system: System) -> str | None:
    """The algorithm (ring, tree or nvls) that the log proves for RUNS; None if it does not.

    A board whose NVSwitch should reduce, and does not, is still held against NVLS.
    """
    if nvls_lost(evidence, runs, system) is not None:
        return None
    chosen = [a for a in evidence.algorithms if a.startswith("AllReduce ")]
    if chosen:
        return _kind(max(chosen, key=lambda a: evidence.algorithm_sizes.get(a, 0)).split()[1])
    asked = _setting(evidence, "NCCL_ALGO")
    if asked is not None:
        return _asked(asked)
    without = set(evidence.nvls_channels) == {"0"} and not _should_reduce(runs, system)
    rows = [run.largest_row for run in runs]
    sums = all(r.redop in ("sum", None) and NOT_NVLS_TYPES.match(r.type) is None for r in rows)
    if without or _without_nvls(evidence, system) or not sums:
        return "ring"
    # a log without the environment may hide NCCL_ALGO, and channels alone are no choice on a few GPUs
    shown = evidence.environment and evidence.nvls_channels and "0" not in evidence.nvls_channels
    return "nvls" if shown and system.reduces_in_nvswitch else None


def nvls_lost(evidence: Evidence, runs: list[Run], system: System | None) -> LogLine | None:
    """A line that says that the GPUs of RUNS do not reduce in their NVSwitch, although they should."""
    if system is None or not _should_reduce(runs, system) or _without_nvls(evidence, system):
        return None
    asked = _setting(evidence, "NCCL_ALGO")
    if asked is not None and _asked(asked) != "nvls":
        return None
    # 0 channels in a log without the environment may hide NCCL_NVLS_ENABLE
    no_channels = evidence.nvls_channels.get("0") if evidence.environment else None
    return evidence.multicast.get("not available") or no_channels


def _should_reduce(runs: list[Run], system: System) -> bool:
    """Return whether all GPUs of boards took part whose NVSwitch can reduce."""
    whole = all(len(run.preamble.ranks) >= BOARD_GPUS * system.domains for run in runs)
    return system.reduces_in_nvswitch and whole


def _without_nvls(evidence: Evidence, system: System) -> bool:
    """Whether a setting or an old NCCL leaves NVLS out."""
    old = any(release(v) < FIRST_NVLS[min(system.domains, 2)] for v in evidence.versions)
    return old or _setting(evidence, "NCCL_NVLS_ENABLE") == "0"


def _setting(evidence: Evidence, name: str) -> str | None:
    """The value of NAME; "" if processes differ; None if it is not printed."""
    found = {e.partition("=")[2] for e in evidence.environment if e.startswith(f"{name}=")}
    return found.pop() if len(found) == 1 else "" if found else None


def _asked(value: str) -> str | None:
    """RING | Tree,Ring | ^NVLS,NVLSTree | allreduce:ring;allgather:tree"""
    parts = [part.rpartition(":") for part in value.lower().split(";")]
    names = next((names for function, _, names in parts if function in ("", "allreduce")), "")
    kinds = {_kind(name) for name in names.removeprefix("^").split(",")}
    if names.startswith("^"):
        return "ring" if "nvls" in kinds else None
    if kinds == {"ring", "tree"}:
        return "ring"
    return kinds.pop() if len(kinds) == 1 else None


def _kind(name: str) -> str | None:
    name = name.strip().lower()
    return "nvls" if name.startswith("nvls") else name if name in ("ring", "tree") else None


GIVE_SYSTEM = "pass --profile (busbar nccl profiles lists them), or --rails and --rate-gbps"
FIX = "set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,ENV and run again"


class Check(checks.Check):
    """The result of a gate on a log. `line`: number of the line with the `evidence`."""

    line: int | None = None


class PointMeasurement(StrictModel):
    """One measurement of a size: us, GB/s, GB/s. `wrong`: the printed last column (None: not compared)."""

    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: float | None


class Point(StrictModel):
    """One message size of a curve."""

    size_bytes: int
    count: int
    type: str
    redop: str | None
    out_of_place: PointMeasurement
    in_place: PointMeasurement


class CollectiveResult(StrictModel):
    """One collective: its curve, and its value at the largest message beside the expected one (GB/s)."""

    busbw_gbps: float | None
    expected_gbps: float | None
    floor_gbps: float | None
    ceiling_gbps: float | None
    fraction: float | None
    passed: bool
    basis: str = Field(default="", description="what little the expected value rests on")
    size_bytes: int | None = None
    plateau_bytes: int = Field(description="the floor applies from here on; 0: to the largest")
    reasoning: list[str] = Field(default_factory=list)
    curve: list[Point] = Field(default_factory=list)


class Table(StrictModel):
    """One table of a log as it is printed; nothing of it is judged."""

    collective: str | None
    line: int
    rows: list[Point]
    average: str | None
    out_of_bounds: int | None


def points(run: Run) -> list[Point]:
    """The rows of a table."""

    def half(m: Measurement) -> PointMeasurement:
        time, algbw, busbw = amount(m.time), amount(m.algbw), amount(m.busbw)
        return PointMeasurement(time_us=time, algbw_gbps=algbw, busbw_gbps=busbw, wrong=number(m.errors))

    return [
        Point(
            size_bytes=row.size, count=row.count, type=row.type, redop=row.redop,
            out_of_place=half(row.out_of_place), in_place=half(row.in_place),
        )
        for row in run.rows
    ]  # fmt: skip


def result(status: Status, code: str, reason: str, line: LogLine | None = None, fix: str = "") -> Check:
    """A Check with the line that proves it, if there is one."""
    check = Check.of(status, code, reason, line.text[:EVIDENCE_WIDTH] if line else None, fix)
    return check.model_copy(update={"line": line.line}) if line else check


passed, failed, unknown, not_required = by_status(result)


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
    bandwidths: dict[str, Check] = field(default_factory=dict)  # of each wanted collective
    results: dict[str, CollectiveResult] = field(default_factory=dict)
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

    def silent(self, hosts: Collection[str]) -> str | None:
        """The first host that is not one of HOSTS; None if there is none, or "" stands for all."""
        absent = self.hosts - {short(host) for host in hosts}
        return min(absent, default=None) if "" not in hosts else None

    @property
    def is_whole(self) -> bool:
        """Whether the log has everything from the arguments to the summary; an excerpt may lack lines."""
        whole = (r.preamble.banner is not None and r.closed and r.preamble.ranks for r in self.judged)
        return bool(self.judged and self.log.missing is None) and all(whole)

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
    wanted = expectation.collectives or [*dict.fromkeys(name for name, _ in named if name is not None)]
    tables = {w: [r for name, r in named if name == w] for w in wanted}
    context = Context(log, expectation, job, tables, nodes_given=expectation.nodes is not None)
    listed = next((r.preamble for r in context.judged or log.runs if r.preamble.ranks), None)
    numbers = {r.rank for r in listed.ranks} if listed is not None else set()
    # where one host is left of a longer device list, others may have taken part
    if listed is None or (len(listed.hosts) == 1 and len(numbers) <= max(numbers)):
        return context
    context.nodes, context.ranks = len(listed.hosts), len(listed.ranks)
    if context.ranks % context.nodes == 0:
        each, gpu = context.ranks // context.nodes, board({r.gpu for r in listed.ranks})
        context.expectation = expectation.with_nodes(context.nodes, each, gpu)
    system, runs = context.expectation.system, tables.get("all_reduce")
    if context.expectation.algorithm == "auto" and system is not None and runs:
        used = algorithm_used(log.evidence, runs, system)
        if used is not None and not (used == "nvls" and system.domains > 2):
            context.expectation = context.expectation.model_copy(update={"algorithm": used})
    return context
