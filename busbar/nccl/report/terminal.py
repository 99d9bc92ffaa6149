"""A verdict for a terminal: gates, curves and what to do next, in as many columns as there are."""

from __future__ import annotations

from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from busbar.nccl.report.plot import curve_plot
from busbar.nccl.units import duration, gbps, rate, size
from busbar.nccl.verdict import CollectiveResult, Diagnosis, Status, Verdict

STYLE: dict[Status, str] = {"pass": "green", "fail": "bold red", "unknown": "yellow", "not-required": "dim"}
MARK: dict[Status, str] = {"pass": "ok", "fail": "FAIL", "unknown": "?", "not-required": "-"}
HEADLINE = {"pass": "PASS", "fail": "FAIL", "unknown": "NO VERDICT"}


def print_verdict(verdict: Verdict, stream: IO[str], *, plot: bool = True) -> None:
    """Print VERDICT to STREAM: verdict first, then gates, rows, reasoning and diagnoses."""
    console = Console(file=stream, highlight=False, soft_wrap=False)
    style: Status = "unknown" if verdict.verdict == "unknown" else verdict.verdict
    console.print(Text(HEADLINE[verdict.verdict], style=STYLE[style]), Text(_summary(verdict)))
    if verdict.simulated:
        console.print(Text(f"simulated: {verdict.simulated}", style="yellow"))
    console.print(_gates(verdict))
    for name, result in verdict.collectives.items():
        _collective(console, name, result, plot=plot)
    for diagnosis in verdict.diagnoses:
        if diagnosis.severity != "note":
            console.print(Text(_title(diagnosis), style="red"))
            console.print(Text(f"  cause: {diagnosis.cause}\n  next:  {diagnosis.next}"))


def _title(diagnosis: Diagnosis) -> str:
    where = f" (line {diagnosis.line})" if diagnosis.line else ""
    return f"{diagnosis.name}{where}: {diagnosis.meaning}"


def _summary(verdict: Verdict) -> str:
    parts = [f"{verdict.ranks or '?'} ranks on {verdict.nodes or '?'} nodes", verdict.transport]
    if verdict.busbw_gbps is not None:
        value = gbps(verdict.busbw_gbps)
        if verdict.expected_gbps:
            value += (
                f" of {gbps(verdict.expected_gbps)} expected{', configured' if verdict.configured else ''}"
            )
        parts.insert(0, value)
    return "  " + ", ".join(parts)


def _gates(verdict: Verdict) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(justify="right", style="dim", no_wrap=True)
    for check in verdict.checks:
        line = f"line {check.line}" if check.line else ""
        table.add_row(
            Text(MARK[check.status], style=STYLE[check.status]), check.name, Text(check.reason), line
        )
    return table


def _collective(console: Console, name: str, result: CollectiveResult, *, plot: bool) -> None:
    console.print(Text(f"\n{name}", style="bold"))
    for line in result.reasoning:
        console.print(Text(f"  {line}", style="dim"))
    if not result.curve:
        return
    table = Table(box=None, pad_edge=False)
    for column in ("size", "time", "algbw", "busbw", "in place"):
        table.add_column(column, justify="right")
    for point in result.curve[-8:]:
        table.add_row(
            size(point.size_bytes), duration(point.out_of_place.time_us), rate(point.out_of_place.algbw_gbps),
            rate(point.out_of_place.busbw_gbps), rate(point.in_place.busbw_gbps),
        )  # fmt: skip
    console.print(table)
    if plot and len(result.curve) > 2:
        console.print(Text(curve_plot(result, min(console.width, 100))))
