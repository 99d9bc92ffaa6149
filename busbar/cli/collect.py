"""`busbar nccl collect`: from a running MPIJob to a verdict."""

from __future__ import annotations

import typer


def register(group: typer.Typer) -> None:
    """Add the command to `busbar nccl`."""
    group.command("collect")(collect)


def collect() -> None:
    """Follow an MPIJob's launcher and judge its log; the question is JSON on stdin.

    stdin: {"namespace", "job", "folder", "deadline_seconds", "expectation": {...}}. The cluster: KUBECONFIG.
    Prints one verdict as JSON and ends with 0 whenever there is a verdict, also a bad one; with 1 when the
    cluster cannot be reached or refuses, with 64 for a question that makes no sense. Log, verdict and report
    are kept in `folder`.
    """
    import json

    from busbar.cli.cluster import command_on_cluster, progress
    from busbar.collect.collect import collect as run
    from busbar.collect.jobwatch import Unreachable
    from busbar.collect.spec import CollectSpec
    from busbar.kube.clock import SystemClock

    with command_on_cluster(CollectSpec) as (api, spec):
        try:
            verdict = run(api, spec, SystemClock(), progress)
        except Unreachable as error:
            typer.echo(
                f"{error}\nNothing is lost: the log is in the launcher's pod. Run the same again when it "
                "answers.",
                err=True,
            )
            raise typer.Exit(1) from None
        typer.echo(json.dumps(verdict, sort_keys=True, separators=(",", ":")))
