"""`busbar training`: from a running training job, or its log, to a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(group: typer.Typer) -> None:
    """Add the commands to `busbar training`."""
    group.command("collect")(collect)
    group.command("check")(check)


def collect() -> None:
    """Follow the job of a training run and judge its log; the request is JSON on stdin.

    stdin: {"namespace", "job", "folder", "deadline_seconds", "expectation": {...}}. The cluster: KUBECONFIG.
    Prints the verdict in short as JSON (busbar.training.outputs.summarize). Exit code 0 for any verdict, also
    a failure; 1 when the cluster cannot be reached or refuses, 64 for a request that is not valid. The log
    and the whole verdict are written to `folder`.
    """
    import json

    from busbar.cli.cluster import command_on_cluster, progress
    from busbar.collect.archive import VERDICT
    from busbar.collect.jobwatch import Unreachable
    from busbar.kube.wait import SystemClock
    from busbar.training.collect.collector import collect as run
    from busbar.training.collect.spec import CollectSpec
    from busbar.training.outputs import summarize

    with command_on_cluster(CollectSpec) as (api, spec):
        try:
            verdict = run(api, spec, SystemClock(), progress)
        except Unreachable as error:
            typer.echo(
                f"no verdict on Job {spec.namespace}/{spec.job}: timed out after "
                f"{spec.deadline_seconds:.0f} s: {error}. The log is still in the job's first pod. Fix: run "
                "the same command again when the API answers.",
                err=True,
            )
            raise typer.Exit(1) from None
        short = summarize(verdict, verdict_file=f"{spec.folder}/{VERDICT}")
        typer.echo(json.dumps(short, sort_keys=True, separators=(",", ":")))


def check(
    log: Annotated[Path, typer.Argument(help="Log of a run, also as .zst.", exists=True, dir_okay=False)],
    verdict: Annotated[
        Path,
        typer.Option(help="verdict.json of a run: its expectation is used.", exists=True, dir_okay=False),
    ],
) -> None:
    """Judge the log of a training run again. Exit code 0: pass, 1: fail, 2: no verdict."""
    import json

    from pydantic import ValidationError

    from busbar.cli import EX_USAGE
    from busbar.nccl.log.source import Source, open_log
    from busbar.training.expectation import Expectation
    from busbar.training.log import read_lines
    from busbar.training.verdict import judge

    try:
        expectation = Expectation.model_validate(json.loads(verdict.read_text())["expectation"])
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        typer.echo(f"{verdict}: is not the verdict of a training run: {error}", err=True)
        raise typer.Exit(EX_USAGE) from None
    source = Source()
    with open_log(str(log)) as stream:
        blocks = source.blocks(source.chunks(stream))
        read = read_lines(line for block in blocks for line in block.splitlines(keepends=True))
    found = judge(read, expectation, missing=(source.truncated,) if source.truncated else ())
    for each in found.checks:
        typer.echo(f"{each.status:<13}{each.name:<12}{each.reason}")
    typer.echo(f"\n{found.verdict.upper()}")
    raise typer.Exit({"pass": 0, "fail": 1, "unknown": 2}[found.verdict])
