"""`busbar nccl collect`: from a running MPIJob to a verdict."""

from __future__ import annotations

import typer


def register(group: typer.Typer) -> None:
    """Add the command to `busbar nccl`."""
    group.command("collect")(collect)


def collect() -> None:
    """Follow an MPIJob's launcher and judge its log; the question is JSON on stdin.

    stdin: {"namespace", "job", "folder", "deadline_seconds", "expectation": {...}}. The cluster: KUBECONFIG.
    Prints the verdict in short as JSON (busbar.outputs.pool.summarize). Exit code 0 whenever there is a
    verdict, also a failed one, 1 when the cluster cannot be reached or refuses, 64 for invalid input. Log,
    whole verdict and report are kept in `folder`.
    """
    import json

    from busbar.cli.cluster import command_on_cluster, progress
    from busbar.collect.archive import VERDICT
    from busbar.collect.collect import collect as run
    from busbar.collect.jobwatch import Unreachable
    from busbar.collect.spec import CollectSpec
    from busbar.kube.clock import SystemClock
    from busbar.outputs.pool import summarize

    with command_on_cluster(CollectSpec) as (api, spec):
        try:
            found = run(api, spec, SystemClock(), progress)
        except Unreachable as error:
            typer.echo(
                f"{error}\nNothing is lost: the log is in the launcher's pod. Run the same again when it "
                "answers.",
                err=True,
            )
            raise typer.Exit(1) from None
        short = summarize(found.verdict, verdict_file=f"{spec.folder}/{VERDICT}", config_map=found.config_map)
        typer.echo(json.dumps(short, sort_keys=True, separators=(",", ":")))
