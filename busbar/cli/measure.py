"""`busbar measure`: measures the pools of a stack again; its outputs stay as they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli import EX_USAGE
from busbar.cli.nccl import WORST
from busbar.cli.nccl_run import NO_VERDICT, errors_end, explained, new_run
from busbar.cli.output import fail, print_text, progress
from busbar.cli.stackfile import Project, SecretError, Stack, kubeconfig_of, load_stack

if TYPE_CHECKING:
    from busbar.collect.spec import CollectSpec
    from busbar.config.stackfile import StackFile
    from busbar.hosts.inventory import Inventory
    from busbar.kube.client import RestApi

IDLE_MINUTES = 5
# Of each pool, the newest: log, verdict and report.
KEPT_RUNS = 100


def measure(
    stack: Stack,
    project: Project = None,
    pool: Annotated[
        str | None, typer.Option(metavar="POOL", help="Only this pool; default: all, one after the other.")
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
) -> None:
    """Measure the pools of a stack again, and record the result for `busbar history`.

    Workers in quarantine are left out. The outputs of the stack change only with an update.

    Exit code 0: pass; 1: fail; 2: no verdict, also if the cluster cannot run the job (never a pass); 64: bad
    usage; 70: an error of busbar itself; 130: interrupted. With several pools the worst counts.
    """
    progress(f"measuring stack {stack}")
    file, inventory = _inventory_of(stack, project)
    pools = [*inventory.cluster.pools]
    if pool and pool not in pools:
        fail(f"--pool {pool}: expected a pool of {file.path.name}: {', '.join(pools)}", EX_USAGE)
    seconds = 60 * minutes if minutes else 60 * IDLE_MINUTES if idle else None
    with errors_end():
        api = _connect(file)
    codes = [_code(api, file, inventory, each, idle, seconds) for each in ([pool] if pool else pools)]
    raise typer.Exit(min(codes, key=WORST.index))


def _inventory_of(stack: str, project: Path | None) -> tuple[StackFile, Inventory]:
    """The stack's file and its hosts. Ends the command with 64 where it is not usable."""
    from busbar.hosts.inventory import Inventory

    try:
        file, cluster = load_stack(stack, project)
    except typer.Exit:
        # 1 would read as a failed fabric.
        raise typer.Exit(EX_USAGE) from None
    return file, Inventory.of(cluster)


def _connect(file: StackFile) -> RestApi:
    """A client for the stack's cluster. Ends the command with 2 where its kubeconfig is not known."""
    from busbar.kube.access import KUBECONFIG_TEXT, connect

    try:
        api = connect({KUBECONFIG_TEXT: kubeconfig_of(file)})
    except SecretError as error:
        fail(f"no verdict: {error}", NO_VERDICT)
    progress(f"cluster {api.server}")
    return api


def _code(
    api: RestApi, file: StackFile, inventory: Inventory, pool: str, idle: bool, seconds: int | None
) -> int:
    """The exit code of one pool; other errors end the command."""
    try:
        with errors_end():
            return _measure(api, file, inventory, pool, idle, seconds)
    except typer.Exit as ended:
        if ended.exit_code not in WORST:
            raise
        return int(ended.exit_code)


def _measure(
    api: RestApi, file: StackFile, inventory: Inventory, pool: str, idle: bool, seconds: int | None
) -> int:
    import shutil
    from datetime import UTC, datetime

    from busbar.judge.archive import REPORT
    from busbar.kube.wait import SystemClock
    from busbar.measure import Preempted, plan_pool, read_facts
    from busbar.measure import measure as run_plan
    from busbar.measure.records import record
    from busbar.nccl.report.terminal import verdict_text

    progress(f"\npool {pool}")
    topology_file = inventory.cluster.validation_of(pool).topology_file
    run, topology = new_run(file.project / topology_file if topology_file else None)
    facts = read_facts(api, None, idle=idle)
    planned = plan_pool(facts, inventory, pool, run, idle=idle, deadline_seconds=seconds, topology=topology)
    progress(explained(planned, ""))
    of_pool = file.project / ".busbar" / file.stack / pool
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{run}"
    folder = of_pool / "runs" / name
    try:
        verdict = run_plan(
            api,
            planned,
            str(folder),
            SystemClock(),
            progress,
            lambda found, spec: record(api, pool, of_pool, found, _relative(spec, file.project), progress),
        )
    except Preempted:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _prune(folder.parent)
    _warn(of_pool.parent, pool)
    print_text(verdict_text(verdict, sys.stdout, full=False, more=f"{folder}/{REPORT}"))
    return verdict.exit_code


def _relative(spec: CollectSpec, project: Path) -> CollectSpec:
    """The same with its folder as an update has it: who reads the record may have another project folder."""
    return spec.model_copy(update={"folder": str(Path(spec.folder).relative_to(project))})


def _prune(runs: Path) -> None:
    """Delete the folders of all but the newest runs; their names begin with the time."""
    import shutil

    for old in sorted(runs.iterdir())[:-KEPT_RUNS]:
        shutil.rmtree(old, ignore_errors=True)


def _warn(folder: Path, pool: str) -> None:
    """Say so where the last run of the pool is below the noise of those before it."""
    from busbar.measure.history import entries
    from busbar.measure.records import read_folder

    of_pool = [each for each in entries(read_folder(folder)) if each.run.pool == pool]
    if of_pool and (warning := of_pool[-1].warning):
        progress(f"warning: {warning}")
