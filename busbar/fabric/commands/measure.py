"""`busbar measure` and `busbar history`: measure the pools of a stack again, and show all measurements."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.nccl import WORST, value
from busbar.cli.output import error, fail, print_result, print_table, print_text, progress
from busbar.cli.stackfile import AsJson, Project, Stack, capability_of, cluster_api, find_file, load_stack
from busbar.exits import DONE, FAILED, NO_VERDICT, USAGE, NoVerdict
from busbar.fabric.commands.nccl import explained, new_run, options_of
from busbar.finding import shown
from busbar.names import VALIDATION_NAMESPACE
from busbar.text import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from busbar.collect.collector import Collected
    from busbar.config.stackfile import StackFile
    from busbar.fabric.measure import Plan
    from busbar.fabric.measure.history import Entry
    from busbar.hosts.inventory import Host
    from busbar.kube.client import RestApi

IDLE_MINUTES = 5
# Number of newest runs per pool that are kept: log, verdict and report.
KEPT_RUNS = 100
COLUMNS = ("time (UTC)", "pool", "by", "nodes", "verdict", "GB/s", "of median", "MAD", "changed")


def measure(
    stack: Stack,
    project: Project = None,
    pool: Annotated[
        str | None, value(None, "POOL", "Only this pool; default: all, one after the other.")
    ] = None,
    nodes: Annotated[
        str | None,
        value(None, "NAMES", "Only these workers of one pool, with commas, also those in quarantine."),
    ] = None,
    idle: Annotated[
        bool,
        typer.Option(
            "--idle",
            help="Only nodes whose GPUs are free, at least two. Any other pod that needs these GPUs ends "
            "the measurement.",
        ),
    ] = False,
    minutes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help=f"Time limit of the job; default: {IDLE_MINUTES} with --idle, else "
            "validation.deadline_seconds, which it cannot exceed.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the pools of a stack again, and record the result for `busbar history`.

    Workers in quarantine are left out. The outputs of the stack change only with an update.

    Exit code 0: pass; 1: fail; 2: no verdict, also if the cluster cannot run the job, or a pass without a
    broken worker that is not in quarantine; 64: bad usage; 70: an error of busbar itself; 130: interrupted.
    With several pools the worst counts.
    """
    path = find_file(stack, project)
    capability = capability_of(path)
    on_site = capability.measuring(path) if capability else _measure_pools
    progress(f"measuring stack {stack}")
    raise typer.Exit(on_site(path, pool, nodes, idle=idle, minutes=minutes, as_json=as_json))


def _measure_pools(
    path: Path, pool: str | None, nodes: str | None, *, idle: bool, minutes: int | None, as_json: bool
) -> int:
    """Measure pools of a K3s cluster, print and record the results. Returns the exit code."""
    from busbar.config import stackfile
    from busbar.fabric.measure import plan_pool, read_facts
    from busbar.hosts.inventory import Inventory

    file = stackfile.read(path)
    inventory = Inventory.of(file.cluster())
    chosen = asked([*inventory.cluster.pools], inventory.workers, pool, nodes)
    seconds = 60 * minutes if minutes else 60 * IDLE_MINUTES if idle else None
    api = cluster_api(file, inventory.cluster)
    progress(f"cluster {api.server}")
    found: dict[str, Any] = {}
    codes = []
    for name, named in chosen.items():
        progress(f"\npool {name}")
        try:
            planned = plan_pool(
                read_facts(api, None, idle=idle),
                inventory,
                name,
                new_run(),
                nodes=named,
                idle=idle,
                deadline_seconds=seconds,
                project=file.project,
            )
            progress(explained(planned, ""))
            code, short = _measure(api, file, name, planned, as_json=as_json)
        except NoVerdict as unknown:
            error(f"no verdict: {unknown}")
            codes.append(NO_VERDICT)
            continue
        codes.append(code)
        found[name] = short
    if as_json:
        print_text(json.dumps({"stack": file.stack, "pools": found}))
    return min(codes, key=WORST.index)


def by_slurm(
    path: Path,
    cluster: str,
    pools: Iterable[str],
    run: Callable[[str, Path], dict[str, Any]],
    not_measured: Callable[[str, Mapping[str, Any]], list[str]],
    *,
    as_json: bool,
) -> int:
    """Measure pools by jobs of Slurm, record and print the results. Returns the exit code.

    `run`: gives the verdict on a pool in short with its record, and keeps its log in a folder.
    `not_measured`: why a verdict is not one of all nodes of its pool.
    """
    from rich.console import Console, Group

    from busbar.config.stackfile import stack_of
    from busbar.fabric.slurm import keep
    from busbar.judge.tables import notes
    from busbar.outputs.build import build_measured
    from busbar.outputs.summary import pool_notes, pools_of, tables

    stack, results = stack_of(path), {}
    for pool in pools:
        folder = Path(".busbar") / stack / pool
        found = run(pool, path.parent / folder / "measure")
        about = {"kind": "measure", "folder": str(folder / "measure")}
        results[pool] = keep(found, path.parent / folder, progress, **about)
    made = build_measured(
        cluster, results, {pool: not_measured(pool, each) for pool, each in results.items()}
    )
    if as_json:
        print_text(json.dumps({"stack": stack, "pools": results}))
    else:
        shown = pools_of(made)
        Console().print(Group(*tables(made, shown, None), *notes(pool_notes(shown, None))))
    verdicts = {each["verdict"] for each in results.values()}
    return FAILED if "fail" in verdicts else DONE if made["nccl_passed"] else NO_VERDICT


def _measure(
    api: RestApi, file: StackFile, pool: str, planned: Plan, *, as_json: bool
) -> tuple[int, dict[str, Any]]:
    """Measure one pool, record and print the result. Returns the exit code, and the verdict in short."""
    from busbar.capability import notify
    from busbar.fabric.measure import LeftBehind, Preempted
    from busbar.fabric.measure import measure as run_plan
    from busbar.fabric.measure.history import append, entries, joined, read_folder
    from busbar.judge.archive import REPORT, VERDICT
    from busbar.judge.nccl.report.terminal import verdict_text
    from busbar.kube.wait import SystemClock
    from busbar.outputs.contract import summarize

    of_stack = file.project / ".busbar" / file.stack
    folder = of_stack / pool / "runs" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{planned.run}"

    recorded = list[str]()

    def keep(found: Collected) -> None:
        if found.record:
            recorded.append(found.record.job_uid)
            short = summarize(found.verdict, config_map=found.config_map, record=found.record)
            append(of_stack / pool, short, progress)
        notify(lambda: api, progress)

    # The path is relative, as in an update: a reader of the record may have another project folder.
    about = {"pool": pool, "folder": str(folder.relative_to(file.project))}
    is_whole, since = not planned.missing, joined(api)
    try:
        verdict = run_plan(api, planned, str(folder), SystemClock(), progress, keep, options_of(file), about)
    except LeftBehind as left:
        error(left)
        verdict, is_whole = left.found, False
    except Preempted:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for old in sorted(folder.parent.iterdir())[:-KEPT_RUNS]:  # their names begin with the time
        shutil.rmtree(old, ignore_errors=True)
    for each in entries(read_folder(of_stack), since):
        if each.run.record.job_uid in recorded and each.warning:
            progress(f"warning: {each.warning}")
    if not as_json:
        print_text(verdict_text(verdict, sys.stdout, full=False, more=f"{folder}/{REPORT}"))
    if planned.missing:
        fix = "Fix: repair them, or put them in quarantine"
        error(f"pool {pool}: not measured: {listed(planned.missing)}. {fix}")
    short = summarize(verdict.model_dump(mode="json"), verdict_file=f"{folder}/{VERDICT}")
    return verdict.exit_code or (0 if is_whole else NO_VERDICT), short


def asked(
    pools: Sequence[str], workers: Sequence[Host], pool: str | None, nodes: str | None
) -> dict[str, list[str] | None]:
    """Pool -> the workers to measure; None: those that are not in quarantine. Bad usage ends with 64."""
    if pool and pool not in pools:
        fail(f"--pool {pool}: expected one of {', '.join(pools)}", USAGE)
    if nodes is None:
        return dict.fromkeys([pool] if pool else pools)
    names = list(dict.fromkeys(nodes.strip(",").split(",")))
    found = {host.name: host.pool or "" for host in workers if pool in (None, host.pool)}
    if unknown := [name for name in names if name not in found]:
        fail(f"--nodes {nodes}: no workers of {pool or 'the stack'}: {', '.join(unknown)}", USAGE)
    of = {found[name] for name in names}
    if len(of) > 1:
        fail(f"--nodes {nodes}: expected workers of one pool, got those of {', '.join(sorted(of))}", USAGE)
    return {of.pop(): names}


def history(stack: Stack, project: Project = None, as_json: AsJson = False) -> None:
    """Show all measurements of a stack, what is normal for its nodes, and what changed before a run.

    A run warns that is below the median of at least five passes on the same nodes and profile by more than
    four times their median absolute deviation and by more than 3 %.

    Exit code 0: the last run of each worker that is not in quarantine (on Slurm of each pool) passed and is
    normal; 1: one is low or no pass; 2: no run of one is known; 64: no such stack.
    """
    from busbar.config.stackfile import stack_of
    from busbar.fabric.measure.history import entries, joined, read_cluster, read_folder

    path = find_file(stack, project)
    name = stack_of(path)
    is_here = (capability := capability_of(path)) and capability.measuring(path)
    loaded = None if is_here else load_stack(stack, project)
    runs, since = read_folder(path.parent / ".busbar" / name, progress), dict[str, datetime]()
    try:
        if loaded:
            api = cluster_api(*loaded)
            # A run that was judged again has its later verdict in the record on this machine.
            runs, since = [*read_cluster(api, VALIDATION_NAMESPACE), *runs], joined(api)
    except NoVerdict as unreached:
        progress(f"note: only what was measured from this folder is shown: {unreached}")
    found = entries(runs, since)
    if not found:
        fail(f"no measurement of stack {name} is recorded. Fix: busbar measure {shown(name)}", NO_VERDICT)
    as_object = {"stack": name, "runs": [each.as_object() for each in found]}
    print_result(as_object, as_json, lambda: print_table(COLUMNS, map(_cells, found)))
    last, unmeasured = {each.run.record.pool: each for each in found}, list[str]()
    if loaded:
        cluster = loaded[1]
        usable = {host.name for host in cluster.hosts.workers} - {*cluster.quarantine}
        last = {worker: each for each in found for worker in usable & each.run.of(since)}
        unmeasured = sorted(usable - {*last})
    bad = [each for each in last.values() if each.warning or each.run.result.verdict != "pass"]
    for run, low in {each.run.record.job_uid: (each.run, each.warning) for each in bad}.values():
        text = f"{run.result.verdict} on {listed(run.nodes)} at {run.at:%Y-%m-%d %H:%M} UTC"
        progress(f"warning: {low or f'pool {run.record.pool}: {text}'}")
    if unmeasured:
        progress(f"warning: no run on {listed(unmeasured)}. Fix: busbar measure {shown(name)}")
    if bad or unmeasured:
        raise typer.Exit(FAILED if bad else NO_VERDICT)


def _cells(entry: Entry) -> tuple[str, ...]:
    """The cells of COLUMNS."""
    run, noise, busbw = entry.run, entry.noise, entry.run.result.busbw_gbps
    return (
        f"{run.at:%Y-%m-%d %H:%M}",
        run.record.pool,
        run.record.kind,
        str(len(run.nodes)),
        f"{run.result.verdict}{', low' if entry.warning else ''}",
        "" if busbw is None else f"{busbw:g}",
        f"{busbw / noise.median:.1%}" if noise and busbw is not None else "",
        f"{noise.mad:.2g}" if noise else "",
        "; ".join(entry.changes),
    )
