"""`busbar rotate`: rotations that are needed once in years, outside of updates."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.ending import acts, when_interrupted
from busbar.cli.engine_commands import say
from busbar.cli.operation import cluster_of, confirm
from busbar.cli.stackfile import Project, Stack, Yes

if TYPE_CHECKING:
    from busbar.operations.key_rotation import RotationPlan


class Kind(StrEnum):
    """The keys that `busbar rotate` can rotate."""

    KEY = "encryption-key"


@acts
def rotate(
    stack: Stack,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="encryption-key: the key of Secrets in etcd.")],
    project: Project = None,
    yes: Yes = False,
) -> None:
    """Rotate the key of Secrets: every server restarts three times, one at a time; pods keep running.

    Certificates and tokens are rotated by an update (k3s.rotate). Refused while `busbar up` or `busbar
    destroy` is running. After an interruption: run the same command again.

    Exit code 0: rotated; 1: refused, failed, or declined; 64: no such stack, or no terminal to ask on.
    """
    import asyncio

    from busbar.hosts.inventory import Inventory
    from busbar.operations import key_rotation, lock

    with when_interrupted(". Fix: run the same command again"):
        cluster, login = cluster_of(stack, project)
        plan = asyncio.run(key_rotation.plan(Inventory.of(cluster), login))
        _explain(plan)
        confirm(yes)
        with lock.held(login, plan.servers, f"busbar rotate {stack}", on_all=True):
            asyncio.run(key_rotation.rotate(plan, login, say))
    typer.echo(f"rotated   the {kind.value}; earlier snapshots of etcd hold the earlier key")


def _explain(plan: RotationPlan) -> None:
    leader = plan.servers[0].name
    if plan.resumed:
        typer.echo(f"resumed   an unfinished rotation; remaining stages: {', '.join(plan.stages)}")
    else:
        typer.echo(f"snapshot  of etcd on {leader}, before anything changes")
    for stage in plan.stages:
        typer.echo(f"{stage:9} on {leader}; then it and the other servers restart, one at a time")
