"""Tables and evidence as values, for tests of single checks on both sides of their limits."""

from collections.abc import Sequence
from typing import Any

from busbar.judge.nccl import Expectation
from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.log.evidence import EdgeCounts, Evidence, read_transport
from busbar.judge.nccl.log.reader import ParsedLog, Proof
from busbar.judge.nccl.log.records import Banner, LogLine, Measurement, Preamble, Rank, Row, Run

MIB = 2**20
LINE = LogLine("", 9, "as printed")


def measurement(
    time: str = "100.0", algbw: str = "1.00", busbw: str = "1.00", wrong: str = "0"
) -> Measurement:
    return Measurement(time, algbw, busbw, wrong)


AT = LogLine("", 1, "")


def row(
    size: int, one: Measurement | None = None, two: Measurement | None = None, line: int = 1, **parts: object
) -> Row:
    """A row of floats that are summed; without `two` both halves are the same."""
    first = one or measurement()
    values = {"count": size // 4, "type": "float", "redop": "sum", "root": -1, **parts}
    at = LogLine("", line, "")
    return Row(size=size, out_of_place=first, in_place=two or first, at=at, **values)  # type: ignore[arg-type]


def table(rows: Sequence[Row], ranks: int = 0, name: str = "all_reduce", banner: Banner | None = None) -> Run:
    """A table behind its device list (eight ranks per host) and its arguments."""
    listed = [
        Rank(n, 0, 100 + n, f"worker-{n // 8}", n % 8, "NVIDIA H100", LogLine("", n + 1, ""))
        for n in range(ranks)
    ]
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


# 512 MiB in half a millisecond
GOOD = measurement("524.288", "1024.00", "1024.00")


def whole(line: int = 1, **changes: Any) -> Run:
    """A table of one row of 512 MiB, from its arguments to its summary, in the lines from LINE on."""
    banner = Banner(512 * MIB, 512 * MIB, 2, "factor", LogLine("", line, f"banner {line}"), validation=1)
    run = table([row(512 * MIB, GOOD)], 8, banner=banner)
    run.line = line + 1
    run.avg, run.avg_at = "1024.00", LogLine("", line + 3, "avg")
    run.out_of_bounds, run.out_of_bounds_status, run.out_of_bounds_at = 0, "OK", LogLine("", line + 2, "")
    for name, value in changes.items():
        assert hasattr(run, name)
        setattr(run, name, value)
    return run


def gates_of(*runs: Run, **log: Any) -> Context:
    """Gates get this; `log`: parts of the parsed log."""
    found = context(Expectation(), *runs)
    found.tables = {"all_reduce": [run for run in runs if run.rows]}
    found.log.bytes = 1000
    for name, value in log.items():
        assert hasattr(found.log, name)
        setattr(found.log, name, value)
    return found


def named(name: str | None, **changes: Any) -> Run:
    """The same, printed by the program NAME."""
    run = whole(**changes)
    run.preamble.name = name
    return run


def without(part: str) -> Run:
    """The same without a PART of what is printed before a table."""
    run = whole()
    setattr(run.preamble, part, None)
    return run
