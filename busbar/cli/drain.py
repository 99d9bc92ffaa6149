"""`busbar drain` and `busbar uncordon`: take a worker out for a repair, and bring it back."""

from __future__ import annotations

from typing import Annotated

import typer

from busbar.cli.operation import operations_of
from busbar.cli.stackfile import Project, Stack, find_file

Worker = Annotated[str, typer.Argument(metavar="HOST", help="Name of a worker.")]


def drain(
    stack: Stack,
    host: Worker,
    reason: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Why; kept on the Node, and shown by status, verify and nodes."),
    ] = "no reason given",
    end_jobs: Annotated[
        bool,
        typer.Option(
            "--end-jobs",
            help="Also evict pods that nothing starts again: those of jobs, and those without a controller.",
        ),
    ] = False,
    project: Project = None,
) -> None:
    """Cordon a worker for a repair, and wait until its pods have left.

    Disruption budgets are honoured. Pods of jobs and without a controller are waited for, those of DaemonSets
    stay. After pools.NAME.drain_timeout_seconds the command ends; the worker stays cordoned also then. No
    update undoes that, or waits for the worker. Run it again to go on, or to change the reason.

    Exit code 0: drained; 1: pods remain, or the API refuses; 64: no such stack or worker.
    """
    path = find_file(stack, project)
    typer.echo(operations_of(path).drain(path, host, reason, end_jobs=end_jobs))


def uncordon(stack: Stack, host: Worker, project: Project = None) -> None:
    """Let pods start again on a worker that `busbar drain` has taken out.

    First it must be Ready and offer the GPUs and HCAs of its pool; that is waited for, five minutes at most.
    One in quarantine comes back without them. A cordon of somebody else stays.

    Exit code 0: pods can start there; 1: it was not drained, lacks something, or stays cordoned; 64: no such
    stack or worker.
    """
    path = find_file(stack, project)
    typer.echo(operations_of(path).uncordon(path, host))
