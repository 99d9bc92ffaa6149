"""`busbar nccl collect`: from a running MPIJob to a verdict."""

from __future__ import annotations

import typer


def register(group: typer.Typer) -> None:
    """Add the command to `busbar nccl`."""
    group.command("collect")(collect)


def collect() -> None:
    """Follow an MPIJob's launcher and judge its log; the request is JSON on stdin.

    stdin: {"namespace", "job", "folder", "deadline_seconds", "expectation": {...}}. The cluster: KUBECONFIG.
    Prints the verdict in short as JSON (busbar.outputs.pool.summarize). Exit code 0 for any verdict, also a
    failure; 1 when the cluster cannot be reached or refuses, 64 for a request that is not valid. The log, the
    whole verdict and the report are written to `folder`.
    """
    import json

    from busbar.cli.cluster import command_on_cluster, progress
    from busbar.collect.collector import collect as run
    from busbar.collect.spec import CollectSpec
    from busbar.collect.watch import Unreachable
    from busbar.judge.archive import VERDICT
    from busbar.kube.wait import SystemClock
    from busbar.outputs.pool import summarize

    with command_on_cluster(CollectSpec) as (api, spec):
        try:
            found = run(api, spec, SystemClock(), progress)
        except Unreachable as error:
            typer.echo(
                f"no verdict on MPIJob {spec.namespace}/{spec.job}: timed out after "
                f"{spec.deadline_seconds:.0f} s: {error}. The log is still in the launcher's pod. Fix: run "
                "the same command again when the API answers.",
                err=True,
            )
            raise typer.Exit(1) from None
        short = summarize(
            found.verdict,
            verdict_file=f"{spec.folder}/{VERDICT}",
            config_map=found.config_map,
            measured_at=found.measured_at,
        )
        typer.echo(json.dumps(short, sort_keys=True, separators=(",", ":")))
