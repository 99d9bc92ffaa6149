"""What the gates share: the parsed log, the expectation, and the tables chosen to be judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from busbar.nccl.expected.expectation import Expectation
from busbar.nccl.log.collective import infer
from busbar.nccl.log.evidence import Evidence, Seen
from busbar.nccl.log.reader import ParsedLog
from busbar.nccl.log.records import Run, number
from busbar.nccl.log.sidecar import largest_row
from busbar.nccl.verdict import Check, Status

EVIDENCE_WIDTH = 400


@dataclass
class Context:
    """`tables` maps each wanted collective to its tables with rows; `nodes` is what the device list says."""

    log: ParsedLog
    expectation: Expectation
    tables: dict[str, list[Run]] = field(default_factory=dict)
    nodes: int | None = None
    ranks: int | None = None
    nodes_given: bool = False

    @property
    def evidence(self) -> Evidence:
        """What NCCL itself printed."""
        return self.log.evidence

    @property
    def judged(self) -> list[Run]:
        """All tables that are judged."""
        return [r for runs in self.tables.values() for r in runs]

    @property
    def domains(self) -> int | None:
        """NVLink domains; None where the number of nodes is not known."""
        hw = self.expectation.hardware
        return hw.domains if hw is not None else None


def build(log: ParsedLog, expectation: Expectation) -> Context:
    """Choose the tables, and complete the expectation by what the device list says where it says nothing."""
    with_rows = [r for r in log.runs if r.rows]
    named = [(infer(r).name, r) for r in with_rows]
    wanted = list(expectation.collectives)
    if not wanted:
        wanted = list(dict.fromkeys(name for name, _ in named if name is not None))
    tables = {w: [r for name, r in named if name == w] for w in wanted}
    hosts, ranks = size_of([r for runs in tables.values() for r in runs] or log.runs)
    given = expectation.nodes is not None
    if hosts and ranks and ranks % hosts == 0:
        expectation = expectation.with_nodes(hosts, ranks // hosts)
    return Context(log, expectation, tables, hosts, ranks, given)


def size_of(runs: list[Run]) -> tuple[int | None, int | None]:
    """Hosts and ranks of the first table with a device list."""
    for run in runs:
        listed = run.preamble.ranks
        if listed:
            return len({r.host for r in listed}), len(listed)
    return None, None


def check(name: str, status: Status, reason: str, seen: Seen | None = None) -> Check:
    """A Check with the line that proves it, if there is one."""
    return Check(
        name=name,
        status=status,
        reason=reason,
        evidence=seen.text[:EVIDENCE_WIDTH] if seen else None,
        line=seen.line if seen else None,
    )


def value_of(run: Run) -> float | None:
    """GB/s at the largest message: the smaller of both halves. Sizes that repeat count by their worst."""
    if not run.rows:
        return None
    top = largest_row(run).size
    values = [
        number(half.busbw) for row in run.rows if row.size == top for half in (row.out_of_place, row.in_place)
    ]
    return None if any(v is None for v in values) else min(v for v in values if v is not None)


def row_seen(run: Run) -> Seen:
    """The row of the largest message as evidence."""
    row = largest_row(run)
    return Seen(str(row.size), row.line, row.text)
