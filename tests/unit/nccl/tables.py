"""Tables and evidence as values, for tests of single checks on both sides of their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from busbar.nccl import Expectation
from busbar.nccl.checks.context import Context
from busbar.nccl.log.binding import Proof
from busbar.nccl.log.edges import EdgeCounts, read_transport
from busbar.nccl.log.evidence import Evidence
from busbar.nccl.log.reader import ParsedLog
from busbar.nccl.log.records import Banner, LogLine, Measurement, Preamble, Rank, Row, Run

MIB = 2**20


def measurement(
    time: str = "100.0", algbw: str = "1.00", busbw: str = "1.00", wrong: str = "0"
) -> Measurement:
    """One half of a row, as printed."""
    return Measurement(time, algbw, busbw, wrong)


def row(size: int, one: Measurement | None = None, two: Measurement | None = None, **parts: object) -> Row:
    """A row of floats that are summed; without `two` both halves are the same."""
    first = one or measurement()
    values = {"count": size // 4, "type": "float", "redop": "sum", "root": -1, "line": 1, **parts}
    return Row(size=size, out_of_place=first, in_place=two or first, **values)  # type: ignore[arg-type]


def table(rows: Sequence[Row], ranks: int = 0, name: str = "all_reduce", banner: Banner | None = None) -> Run:
    """A table behind its device list (eight ranks per host) and its arguments."""
    listed = [Rank(n, 0, 100 + n, f"worker-{n // 8}", n % 8, "NVIDIA H100", n + 1) for n in range(ranks)]
    preamble = Preamble(name=f"{name}_perf", banner=banner, ranks=listed)
    return Run(preamble, line=1, error_column="#wrong", rows=list(rows))


def context(want: Expectation, *runs: Run, evidence: Evidence | None = None, **known: Any) -> Context:
    """What a check gets: the tables of all_reduce and what NCCL printed; `known`: nodes, ranks, ..."""
    found = evidence or Evidence()
    log = ParsedLog(list(runs), None, found, [Proof(found, Evidence()) for _ in runs])
    return Context(log, want, tables={"all_reduce": list(runs)}, **known)


def said(value: str, line: int = 1) -> dict[str, LogLine]:
    """A fact of NCCL and the line that states it."""
    return {value: LogLine(value, line, f"line {line}")}


def printed(edges: dict[str, int] | None = None, **facts: Any) -> Evidence:
    """What NCCL printed: EDGES by their transport (NET/IB/0/GDRDMA), each with its number; other facts."""
    evidence = Evidence(**facts)
    for number, (text, count) in enumerate((edges or {}).items(), 1):
        transport = read_transport(text)
        assert transport is not None
        evidence.edges[transport.label] = EdgeCounts(transport, LogLine(text, number, text), count)
    return evidence
