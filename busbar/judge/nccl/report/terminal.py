"""A verdict for a terminal: in short, or with gates, curves and all fixes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping
from typing import IO, NamedTuple

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from busbar.judge.nccl.diagnose import Remark
from busbar.judge.nccl.units import compared, duration, gbps, rate, size
from busbar.judge.nccl.verdict import Check, CollectiveResult, Diagnosis, Status, Verdict
from busbar.judge.tables import STYLES
from busbar.text import counted

HEADLINE = {"pass": "PASS", "fail": "FAIL", "unknown": "NO VERDICT"}
MAX_LINES = {"pass": 12, "fail": 20, "unknown": 20}
# gates whose reasons are the proof of a pass
PROOF = ("gdrdma", "rails", "sharp", "mnnvl", "correctness")
FULL = "add --full for gates and table, --html FILE for the report"
LABEL = 7
SHOWN_REMARKS = 3


class Item(NamedTuple):
    """A labelled text of at most `lines` lines."""

    label: str
    text: str
    lines: int = 1


def summary(verdict: Verdict, width: int, more: str = FULL) -> list[str]:
    """VERDICT in at most MAX_LINES lines of WIDTH columns: first the conclusion, at last MORE."""
    first = HEADLINE[verdict.verdict]
    count = len(verdict.remarks) + verdict.more_remarks
    said = f", {counted(count, 'remark')}" if verdict.passed and count else ""
    simulated = [Item("simulated", verdict.simulated)] if verdict.simulated else []
    found = _of_pass(verdict) if verdict.passed else _of_failure(verdict)
    headline = Item(first, f"{measured(verdict)}{said}", 2)
    items = [headline, *simulated, *found, *_remarks(verdict), Item("more", more)]
    return [line for item in items for line in _wrapped(item, max(width, 40))]


def measured(verdict: Verdict) -> str:
    """A text like `all_reduce 390.28 GB/s at 2 GiB, 97.6 % of the expected 400 GB/s, 16 ranks on 2 nodes`."""
    parts = [f"{counted(verdict.ranks, 'rank')} on {counted(verdict.nodes, 'node')}"]
    parts.append("transport not known" if verdict.transport == "unknown" else verdict.transport)
    name, result = next(iter(verdict.collectives.items()), ("", None))
    if result is not None and result.busbw_gbps is not None:
        value = f"{name} {gbps(result.busbw_gbps)}"
        if result.size_bytes is not None:
            value += f" at {size(result.size_bytes)}"
        if result.expected_gbps:
            value += f", {compared(result.busbw_gbps, result.expected_gbps)}"
            basis = "configured" if verdict.configured else result.basis
            value += f" ({basis})" if basis else ""
        parts.insert(0, value)
    return ", ".join(parts)


def first_cause(verdict: Verdict) -> tuple[Check | None, Diagnosis | None]:
    """The first cause and its gate; without a known one, the first gate that did not pass."""
    bad = [c for s in ("fail", "unknown") for c in verdict.checks if c.status == s]
    cause = next((d for d in verdict.diagnoses if d.role == "first-cause"), None)
    found = (cause.line, cause.evidence) if cause is not None else None
    shows = (c for c in bad if (c.line or 0, c.evidence or c.reason) == found)
    return next(shows, next(iter(bad), None)), cause


def _of_pass(verdict: Verdict) -> list[Item]:
    proof = [c.reason for name in PROOF for c in verdict.checks if c.name == name and c.status == "pass"]
    items = [Item("proof", "; ".join(proof), 2)] if proof else []
    others = [
        f"{name} {gbps(result.busbw_gbps)}"
        for name, result in list(verdict.collectives.items())[1:]
        if result.busbw_gbps is not None
    ]
    if others:
        items.append(Item("also", ", ".join(others), 2))
    accepted = [c.reason for c in verdict.checks if c.code == "warnings.accepted"]
    items += [Item("noted", reason, 2) for reason in accepted]
    noted = [d for d in verdict.diagnoses if d.severity != "note"]
    where = f" ({noted[0].evidence})" if noted and not noted[0].line else ""
    items += [Item("noted", f"{d.name}: {d.meaning}{where}. Next: {d.next}", 2) for d in noted[:1]]
    if noted[1:]:
        items.append(Item("", f"and {', '.join(d.name for d in noted[1:])}"))
    return items


def _remarks(verdict: Verdict) -> list[Item]:
    """The first remarks, and the number of the others; in one item where a failure has more to say."""
    shown = [remark_text(remark) for remark in verdict.remarks[:SHOWN_REMARKS]]
    rest = len(verdict.remarks) + verdict.more_remarks - len(shown)
    more = [f"and {counted(rest, 'remark')} more"] if rest else []
    if verdict.passed:
        return [*(Item("remark", text, 2) for text in shown), *(Item("", text) for text in more)]
    return [Item("remark", "; ".join([*shown, *more]), 2)] if shown else []


def remark_text(remark: Remark) -> str:
    """A remark with its line and the number of such lines; a difference between hosts has no line."""
    if not remark.line:
        return f"the hosts differ: {remark.text}"
    count = f" ({remark.count} such lines)" if remark.count > 1 else ""
    return f"line {remark.line}: {remark.text}{count}"


def _of_failure(verdict: Verdict) -> list[Item]:
    check, known = first_cause(verdict)
    items: list[Item] = []
    if known is not None:
        items.append(Item("cause", f"{known.name}: {known.meaning}", 2))
    if check is not None:
        items.append(Item("gate" if known else "cause", f"{check.name}: {check.reason}", 3))
    shown = known if known is not None and known.line else check
    if shown is not None and shown.line:
        items.append(Item(f"line {shown.line}", shown.evidence or "", 2))
    if known is not None:
        items += [Item("why", known.cause, 3), Item("next", known.next, 3)]
    elif check is not None and check.fix:
        items.append(Item("next", check.fix, 3))
    also = _others(verdict, check, known)
    if also:
        items.append(Item("also", also, 2))
    return items


def _others(verdict: Verdict, check: Check | None, known: Diagnosis | None) -> str:
    """The names of the other gates that did not pass, and of the other known failures."""
    parts = []
    for status, text in (("fail", "failed"), ("unknown", "not proved")):
        names = [c.name for c in verdict.checks if c.status == status and c is not check]
        parts += [f"{text}: {', '.join(names)}"] if names else []
    seen = [d.name for d in verdict.diagnoses if d.severity != "note" and d is not known]
    parts += [f"seen: {', '.join(seen)}"] if seen else []
    return "; ".join(parts)


def _wrapped(item: Item, width: int) -> list[str]:
    first = f"{item.label:<{LABEL}}"
    return textwrap.wrap(
        " ".join(item.text.split()),
        width,
        initial_indent=first if first.endswith(" ") else f"{first} ",
        subsequent_indent=" " * LABEL,
        max_lines=item.lines,
        placeholder=" ...",
        break_on_hyphens=False,
    )


MARK: dict[Status, str] = {"pass": "ok", "fail": "FAIL", "unknown": "?", "not-required": "-"}


def verdict_text(verdict: Verdict, stream: IO[str], *, full: bool = False, more: str = FULL) -> str:
    """VERDICT as text for STREAM, with colours if it is a terminal.

    In short: at most 12 lines on a pass, 20 otherwise, with MORE as the last. FULL: everything.
    """
    out = io.StringIO()
    console = Console(file=out, force_terminal=stream.isatty() or None, highlight=False, soft_wrap=False)
    if full:
        _print_full(console, verdict)
        return out.getvalue()
    head, *rest = summary(verdict, console.width, more)
    word = HEADLINE[verdict.verdict]
    lines = [Text.assemble((word, STYLES[verdict.verdict]), head[len(word) :]), *map(Text, rest)]
    console.print(*lines, sep="\n")
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


def _print_full(console: Console, verdict: Verdict) -> None:
    console.print(Text(HEADLINE[verdict.verdict], style=STYLES[verdict.verdict]), Text(measured(verdict)))
    if verdict.simulated:
        console.print(Text(f"simulated: {verdict.simulated}", style="yellow"))
    console.print(_gates(verdict))
    for remark in verdict.remarks:
        console.print(Text(f"remark: {remark_text(remark)}"))
    for name, result in verdict.collectives.items():
        _collective(console, name, result)
    for diagnosis in verdict.diagnoses:
        if diagnosis.severity != "note":
            where = f" (line {diagnosis.line})" if diagnosis.line else ""
            console.print(Text(f"{diagnosis.name}{where}: {diagnosis.meaning}", style="red"))
            console.print(Text(f"  cause: {diagnosis.cause}\n  next:  {diagnosis.next}"))


def _gates(verdict: Verdict) -> Table:
    columns = (Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold"))
    lines = Column(justify="right", style="dim", no_wrap=True)
    table = Table(*columns, lines, box=None, pad_edge=False, show_header=False)
    for check in verdict.checks:
        line = f"line {check.line}" if check.line else ""
        table.add_row(
            Text(MARK[check.status], style=STYLES[check.status]), check.name, Text(check.sentence), line
        )
    return table


def _collective(console: Console, name: str, result: CollectiveResult) -> None:
    console.print(Text(f"\n{name}", style="bold"))
    for line in result.reasoning:
        console.print(Text(f"  {line}", style="dim"))
    if not result.curve:
        return
    names = ("size", "time", "algbw", "busbw", "in place")
    table = Table(*(Column(name, justify="right") for name in names), box=None, pad_edge=False)
    for point in result.curve[-8:]:
        table.add_row(
            size(point.size_bytes), duration(point.out_of_place.time_us), rate(point.out_of_place.algbw_gbps),
            rate(point.out_of_place.busbw_gbps), rate(point.in_place.busbw_gbps),
        )  # fmt: skip
    console.print(table)
