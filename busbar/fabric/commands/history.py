"""`busbar history`: the measurements of a stack over time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.output import fail, print_text, progress
from busbar.cli.stackfile import AsJson, Project, Stack, capability_of, cluster_api, find_file, load_stack
from busbar.exits import FAILED, NO_VERDICT, USAGE, NoVerdict
from busbar.names import VALIDATION_NAMESPACE
from busbar.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from busbar.config import Cluster
    from busbar.config.stackfile import StackFile
    from busbar.fabric.measure.history import Entry, Run

MAX_WIDTH = 1000


def history(
    stack: Stack,
    project: Project = None,
    as_json: AsJson = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the bandwidths over time as SVG.")
    ] = None,
) -> None:
    """Show all measurements of a stack, what is normal for its nodes, and what changed before a run.

    A run warns that is below the median of at least five passes on the same nodes and profile by more than
    four times their median absolute deviation and by more than 3 %.

    Exit code 0: the last run of each pool passed and is normal; 1: it is low or no pass; 2: no run is
    known; 64: no such stack.
    """
    from busbar.config.stackfile import stack_of
    from busbar.fabric.measure.history import entries

    path = find_file(stack, project)
    name = stack_of(path)
    # Only a K3s cluster has records itself.
    is_here = (capability := capability_of(path)) and capability.measuring(path)
    found = entries(_runs(path.parent / ".busbar" / name, None if is_here else load_stack(stack, project)))
    if not found:
        fail(f"no measurement of stack {name} is recorded. Fix: busbar measure {stack}", NO_VERDICT)
    if svg:
        _write(svg, found)
    as_object = {"stack": name, "runs": [each.as_object() for each in found]}
    print_text(json.dumps(as_object, sort_keys=True) if as_json else _table(found))
    last = {each.run.record.pool: each for each in found}.values()
    for warning in filter(None, (each.warning for each in last)):
        progress(f"warning: {warning}")
    if any(each.is_low or each.run.result.verdict != "pass" for each in last):
        raise typer.Exit(FAILED)


def _runs(folder: Path, stack: tuple[StackFile, Cluster] | None) -> list[Run]:
    """The records on this machine, and in the cluster; if the cluster cannot be read, a note says so."""
    from busbar.fabric.measure.history import read_cluster, read_folder

    here = read_folder(folder, progress)
    try:
        # Of a run that was judged again, the record on this machine has the later verdict.
        return [*(read_cluster(cluster_api(*stack), VALIDATION_NAMESPACE) if stack else ()), *here]
    except NoVerdict as error:
        progress(f"note: only what was measured from this folder is shown: {error}")
        return here


def _table(found: Sequence[Entry]) -> str:
    from rich.console import Console

    from busbar.judge.tables import table

    made = table("time (UTC)", "pool", "by", "nodes", "verdict", right=("GB/s", "of median", "MAD"))
    made.add_column("changed")
    for each in found:
        run, noise, busbw = each.run, each.noise, each.run.result.busbw_gbps
        made.add_row(
            f"{run.at:%Y-%m-%d %H:%M}",
            run.record.pool,
            run.record.kind,
            str(len(run.nodes)),
            f"{run.result.verdict}{', low' if each.is_low else ''}",
            "" if busbw is None else f"{busbw:g}",
            f"{busbw / noise.median:.1%}" if noise and busbw is not None else "",
            f"{noise.mad:.2g}" if noise else "",
            "; ".join(each.changes),
            style="red" if each.is_low else "",
        )
    # Changes are long: the terminal wraps them, and a file has one line per run.
    console = Console(highlight=False, width=MAX_WIDTH)
    with console.capture() as text:
        console.print(made)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def _write(path: Path, found: Sequence[Entry]) -> None:
    from busbar.judge.nccl.report.svg import Dot, series_svg

    series: dict[str, list[Dot]] = {}
    for each in found:
        run, noise, busbw = each.run, each.noise, each.run.result.busbw_gbps
        if busbw is None:
            continue
        about = f"{run.record.kind}, {counted(len(run.nodes), 'node')}, {run.result.verdict}"
        dot = Dot(
            run.at,
            busbw,
            is_bad=each.is_low or run.result.verdict != "pass",
            text="; ".join([about, *each.changes]),
            normal=noise.median if noise else None,
            floor=noise.floor if noise else None,
            changed=bool(each.changes),
        )
        series.setdefault(f"pool {run.record.pool}", []).append(dot)
    try:
        path.write_text(series_svg(series), encoding="utf-8")
    except OSError as error:
        fail(f"{path} not written: {error.strerror}", USAGE)
