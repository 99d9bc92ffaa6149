"""A verdict for a terminal: in short, or with gates, curves and all fixes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from busbar.judge.nccl.report.plot import curve_plot
from busbar.judge.nccl.report.summary import FULL, HEADLINE, first_cause, measured, remark_text, summary
from busbar.judge.nccl.units import duration, rate, size
from busbar.judge.nccl.verdict import CollectiveResult, Diagnosis, Status, Verdict
from busbar.judge.tables import STYLES

MARK: dict[Status, str] = {"pass": "ok", "fail": "FAIL", "unknown": "?", "not-required": "-"}


def verdict_text(
    verdict: Verdict, stream: IO[str], *, full: bool = False, plot: bool = True, more: str = FULL
) -> str:
    """VERDICT as text for STREAM, with colours if it is a terminal.

    In short: at most 12 lines on a pass, 20 otherwise, with MORE as the last. FULL: gates, rows, reasoning,
    curves and diagnoses.
    """
    out = io.StringIO()
    console = Console(file=out, force_terminal=stream.isatty() or None, highlight=False, soft_wrap=False)
    if full:
        _print_full(console, verdict, plot=plot)
    else:
        head, *rest = summary(verdict, console.width, more)
        word = HEADLINE[verdict.verdict]
        console.print(Text.assemble((word, STYLES[verdict.verdict]), head[len(word) :]))
        for line in rest:
            console.print(Text(line))
    return out.getvalue()


def verdicts_text(verdicts: Mapping[str, Verdict], stream: IO[str]) -> str:
    """A line for each of VERDICTS, by the names of their files, as text for STREAM."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=stream.isatty() or None, highlight=False, soft_wrap=True)
    width = max(map(len, verdicts))
    for file, verdict in verdicts.items():
        check, known = first_cause(verdict)
        why = known.name if known else f"{check.name}: {check.sentence}" if check else ""
        text = "; ".join(filter(None, (measured(verdict), why)))
        mark = Text(f"{HEADLINE[verdict.verdict]:<10}", STYLES[verdict.verdict])
        console.print(Text.assemble(mark, f"  {file:<{width}}  {text}"))
    return out.getvalue()


def _print_full(console: Console, verdict: Verdict, *, plot: bool) -> None:
    console.print(Text(HEADLINE[verdict.verdict], style=STYLES[verdict.verdict]), Text(measured(verdict)))
    if verdict.simulated:
        console.print(Text(f"simulated: {verdict.simulated}", style="yellow"))
    console.print(_gates(verdict))
    for remark in verdict.remarks:
        console.print(Text(f"remark: {remark_text(remark)}"))
    for name, result in verdict.collectives.items():
        _collective(console, name, result, plot=plot)
    for diagnosis in verdict.diagnoses:
        if diagnosis.severity != "note":
            console.print(Text(_title(diagnosis), style="red"))
            console.print(Text(f"  cause: {diagnosis.cause}\n  next:  {diagnosis.next}"))


def _title(diagnosis: Diagnosis) -> str:
    where = f" (line {diagnosis.line})" if diagnosis.line else ""
    return f"{diagnosis.name}{where}: {diagnosis.meaning}"


def _gates(verdict: Verdict) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(justify="right", style="dim", no_wrap=True)
    for check in verdict.checks:
        line = f"line {check.line}" if check.line else ""
        table.add_row(
            Text(MARK[check.status], style=STYLES[check.status]), check.name, Text(check.sentence), line
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
