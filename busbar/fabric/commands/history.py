"""`busbar history`: the measurements of a stack over time."""

from __future__ import annotations

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
    from busbar.judge.nccl.report.svg import Dot

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
    four times their median absolute deviation and by more than 3 %. A node is named that is in most bad runs.

    Exit code 0: the last run of each pool passed and is normal; 1: it is low or no pass; 2: no run is
    known; 64: no such stack.
    """
    from busbar.config.stackfile import stack_of
    from busbar.fabric.measure.history import entries, read_folder, suspects

    path = find_file(stack, project)
    name = stack_of(path)
    # Only a K3s cluster has records itself.
    here = read_folder(path.parent / ".busbar" / name, progress)
    is_here = (capability := capability_of(path)) and capability.measuring(path)
    found = entries(here if is_here else _runs(*load_stack(stack, project)))
    if not found:
        fail(f"no measurement of stack {name} is recorded. Fix: busbar measure {stack}", NO_VERDICT)
    if svg:
        _write(svg, found)
    print_text(_as_json(name, found) if as_json else _table(found))
    last = {each.run.record.pool: each for each in found}.values()
    for warning in [*filter(None, (each.warning for each in last)), *suspects(found)]:
        progress(f"warning: {warning}")
    if any(each.is_low or each.run.result.verdict != "pass" for each in last):
        raise typer.Exit(FAILED)


def _runs(file: StackFile, cluster: Cluster) -> list[Run]:
    """The records in the cluster and on this machine; if the cluster cannot be read, a note says so."""
    from busbar.fabric.measure.history import read_cluster, read_folder

    here = read_folder(file.project / ".busbar" / file.stack, progress)
    try:
        api = cluster_api(file, cluster)
        # Of a run that was judged again, the record on this machine has the later verdict.
        return [*read_cluster(api, VALIDATION_NAMESPACE, progress), *here]
    except NoVerdict as error:
        progress(f"note: only what was measured from this folder is shown: {error}")
        return here


def _as_json(stack: str, found: Sequence[Entry]) -> str:
    import json

    return json.dumps({"stack": stack, "runs": [each.as_object() for each in found]}, sort_keys=True)


def _table(found: Sequence[Entry]) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("time (UTC)", "pool", "by", "nodes", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in ("GB/s", "of median", "MAD"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("changed")
    for each in found:
        table.add_row(*_row(each), style="red" if each.is_low else "")
    # Changes are long: the terminal wraps them, and a file has one line per run.
    console = Console(highlight=False, width=MAX_WIDTH)
    with console.capture() as text:
        console.print(table)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def _row(entry: Entry) -> list[str]:
    run, noise = entry.run, entry.noise
    busbw = run.result.busbw_gbps
    part = f"{busbw / noise.median:.1%}" if noise and busbw is not None else ""
    return [
        f"{run.at:%Y-%m-%d %H:%M}",
        run.record.pool,
        run.record.kind,
        str(len(run.nodes)),
        f"{run.result.verdict}{', low' if entry.is_low else ''}",
        "" if busbw is None else f"{busbw:g}",
        part,
        f"{noise.mad:.2g}" if noise else "",
        "; ".join(entry.changes),
    ]


def _write(path: Path, found: Sequence[Entry]) -> None:
    from busbar.judge.nccl.report.svg import series_svg

    series: dict[str, list[Dot]] = {}
    for each in found:
        if each.run.result.busbw_gbps is not None:
            series.setdefault(f"pool {each.run.record.pool}", []).append(
                _dot(each, each.run.result.busbw_gbps)
            )
    try:
        path.write_text(series_svg(series), encoding="utf-8")
    except OSError as error:
        fail(f"{path} not written: {error.strerror}", USAGE)


def _dot(entry: Entry, busbw: float) -> Dot:
    from busbar.judge.nccl.report.svg import Dot

    run, noise = entry.run, entry.noise
    return Dot(
        run.at,
        busbw,
        is_bad=entry.is_low or run.result.verdict != "pass",
        text="; ".join(
            [f"{run.record.kind}, {counted(len(run.nodes), 'node')}, {run.result.verdict}", *entry.changes]
        ),
        normal=noise.median if noise else None,
        floor=noise.floor if noise else None,
        changed=bool(entry.changes),
    )
