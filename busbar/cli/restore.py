"""`busbar snapshots` and `busbar restore`: lists snapshots of etcd, and restores one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.ending import when_interrupted
from busbar.cli.engine_commands import say
from busbar.cli.operation import confirm
from busbar.cli.output import error, print_result, print_table
from busbar.cli.stackfile import AsJson, Project, Stack, Yes, load_stack, login_of
from busbar.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from busbar.operations.restore_plan import RestorePlan
    from busbar.operations.snapshots import Snapshot

_MIB = 1 << 20


def snapshots(
    stack: Stack,
    as_json: AsJson = False,
    project: Project = None,
) -> None:
    """List the snapshots of etcd on the servers, and in the bucket while K3s is running; the newest first.

    Exit code 0: all servers answered; 1: not all of them; 64: no such stack.
    """
    import asyncio
    from dataclasses import asdict

    from busbar.hosts.inventory import Inventory
    from busbar.hosts.remote import Hosts
    from busbar.operations.snapshots import ServerState, all_of, ask

    file, cluster = load_stack(stack, project)

    async def answers() -> list[ServerState | str]:
        async with Hosts.open(login_of(file, cluster.ssh)) as hosts:
            return await ask(hosts, Inventory.of(cluster).servers)

    states = asyncio.run(answers())
    missing = [each for each in states if isinstance(each, str)]
    found = all_of([each for each in states if isinstance(each, ServerState)])
    result = {"snapshots": [asdict(each) for each in found], "errors": missing}
    print_result(result, as_json, lambda: _show(found))
    for text in missing:
        error(text)
    if missing:
        raise typer.Exit(1)


def restore(
    stack: Stack,
    snapshot: Annotated[
        str,
        typer.Option(help="Name as `busbar snapshots` lists it, or path of a file on a server."),
    ],
    s3: Annotated[
        bool, typer.Option("--s3", help="Take it from the bucket (k3s.snapshots.s3), by name.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Server to restore first; default: one that has the snapshot."),
    ] = None,
    project: Project = None,
    yes: Yes = False,
) -> None:
    """Replace everything in the cluster by a snapshot of etcd; the API is unavailable for minutes.

    Everything written since the snapshot is lost. Each server keeps its previous data in a folder that is
    printed. Refused while `busbar up` or `busbar destroy` is running. After an interruption: run the same
    command again.

    Exit code 0: restored, and nothing differs from the configuration; 1: refused, failed, declined, or
    something differs; 64: no such stack, or no terminal to ask on.
    """
    import asyncio

    from busbar.hosts.inventory import Inventory
    from busbar.operations import lock, restore_plan
    from busbar.operations import restore as operation

    stopped = "; K3s may be stopped on servers. Fix: run the same command again"
    with when_interrupted(stopped):
        file, cluster = load_stack(stack, project)
        login, inventory = login_of(file, cluster.ssh), Inventory.of(cluster)
        plan = asyncio.run(restore_plan.plan(inventory, login, snapshot, s3=s3, server=server))
        _explain(plan)
        confirm(yes)
        with lock.held(login, plan.servers, f"busbar restore {stack}", on_all=True):
            done = asyncio.run(operation.restore(plan, login, say))
    for host, folder in done.kept.items():
        typer.echo(f"old data: {host}:{folder} (delete it when it is no longer needed)")
    if done.waiting:
        error(f"restored; Nodes that are not Ready: {', '.join(done.waiting)}")
    from busbar.cli.verify import verify

    verify(stack, project)
    if done.waiting:
        raise typer.Exit(1)


def _explain(plan: RestorePlan) -> None:
    snapshot = plan.snapshot
    what = (
        f"{snapshot.bytes / _MIB:.1f} MiB, {snapshot.time}"
        if snapshot.time
        else "not verified: K3s is not running"
    )
    typer.echo(f"snapshot  {snapshot.name} ({snapshot.where}, {what})")
    typer.echo(f"restored  on {plan.first.name}; its current data is moved aside")
    others = ", ".join(each.name for each in plan.others)
    typer.echo(f"rejoin    {others or 'no other server'}, one at a time; their current data is moved aside")
    typer.echo(f"restart   the agents of {counted(len(plan.workers), 'worker')}; pods keep running")
    if plan.resumed:
        typer.echo("resumed   an unfinished restore; this one starts from the beginning")
    typer.echo("lost      everything that was written to the cluster since the snapshot")


def _show(found: Sequence[Snapshot]) -> None:
    if not found:
        typer.echo("none; K3s takes one every 12 hours by default (k3s.snapshots)")
        return
    rows = [(each.name, each.where, f"{each.bytes / _MIB:.1f}", each.time) for each in found]
    print_table(("name", "where", "MiB", "time"), rows)
