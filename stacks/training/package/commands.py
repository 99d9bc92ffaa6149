"""`busbar training`: the configuration of stacks/training; from a running job, or its log, to a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.output import USAGE, fail, progress
from busbar.cli.stackfile import Project, Stack, find_file, findings_end_the_command
from stacks.training.package import storage_commands

if TYPE_CHECKING:
    from stacks.training.package.config import Training


def register(group: typer.Typer) -> None:
    """Add the commands to `busbar training`."""
    group.command("check-config")(check_config)
    group.command("check")(check)
    group.command("collect", hidden=True)(collect)
    storage_commands.register(group)


def check_config(stack: Stack, project: Project = None) -> None:
    """Validate a stack's configuration; nothing is changed.

    Exit code 0: valid; 1: errors; 64: no such stack.
    """
    from stacks.training.package import config

    path = find_file(stack, project)
    with findings_end_the_command(path):
        training = config.read(path)
    typer.echo(f"OK  {path.name}")
    for line in _describe(training):
        typer.echo(f"    {line}")


def _describe(training: Training) -> Iterator[str]:
    """The configuration in a few lines: the cluster, the run, what is expected of it, what is installed."""
    from busbar.judge.nccl.units import share, size

    proof, trainer, storage = training.proof, training.trainer, training.storage
    yield f"cluster {training.cluster}, pools: {', '.join(training.pools) or 'all'}"
    if proof.enabled:
        gradients = (
            size(proof.gradient_bytes) if proof.gradient_bytes else "the largest measured size to 1 GiB"
        )
        yield (
            f"training run: {proof.backend}, {proof.steps} steps, gradients of {gradients}, "
            f"image {proof.image}, at most {proof.deadline_seconds} s per pool"
        )
        yield (
            f"expected: loss lower by {share(proof.min_loss_drop)}, all-reduce at "
            f"{share(proof.min_busbw_fraction)} of the measured busbw"
            + ("" if proof.enforce else "; `pulumi up` succeeds without (proof.enforce: false)")
        )
    else:
        yield "no training run (proof.enabled: false): training_passed is false"
    for pool, networks in training.networks.items():
        listed = ", ".join(f"{each.name} ({each.type}, {each.ipam.subnet})" for each in networks)
        yield f"networks of pool {pool}: {listed or 'none'}"
    if storage.is_shared:
        source = f"{storage.nfs.server}:{storage.nfs.export}" if storage.nfs else None
        if storage.nfs and storage.nfs.from_cluster:
            source = "of the cluster (nfs_server)"
        yield f"shared storage: {storage.mode} {source or storage.path or storage.class_name}"
    yield f"Kubeflow Trainer: {f'{trainer.version}, {trainer.chart}' if trainer.enabled else 'not installed'}"
    if training.kueue.enabled:
        yield f"Kueue: {training.kueue.version}, {training.kueue.chart}"
    operator = training.training_operator
    if operator.enabled:
        yield f"Training Operator: {operator.image}, {', '.join(operator.kinds)}"


def collect() -> None:
    """Follow the job of a training run and judge its log; the request is JSON on stdin.

    stdin: {"namespace", "job", "folder", "deadline_seconds", "expectation": {...}}. The cluster: KUBECONFIG.
    Prints the verdict in short as JSON (outputs.summarize). Exit code 0 for any verdict, also
    a failure; 1 when the cluster cannot be reached or refuses, 64 for a request that is not valid. The log
    and the whole verdict are written to `folder`.
    """
    import json

    from busbar.cli.collect import collecting
    from busbar.judge.archive import VERDICT
    from busbar.kube.wait import SystemClock
    from stacks.training.package.collect.collector import collect as run
    from stacks.training.package.collect.spec import CollectSpec
    from stacks.training.package.outputs import summarize

    with collecting(CollectSpec, "Job", "the job's first pod") as (api, spec):
        verdict = run(api, spec, SystemClock(), progress)
        short = summarize(verdict, verdict_file=f"{spec.folder}/{VERDICT}")
        typer.echo(json.dumps(short, sort_keys=True, separators=(",", ":")))


def check(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Log of a run: plain, .gz or .zst (by content).", exists=True, dir_okay=False
        ),
    ],
    verdict: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="verdict.json of a run: its expectation is used.",
            exists=True,
            dir_okay=False,
        ),
    ],
) -> None:
    """Judge the log of a training run again.

    Exit code 0: pass; 1: fail; 2: no verdict because evidence is missing; 64: bad usage.
    """
    import json

    from pydantic import ValidationError

    from busbar.judge.nccl.log.source import Source, open_log
    from busbar.outputs.values import problems
    from stacks.training.package.expectation import Expectation
    from stacks.training.package.log import read_lines
    from stacks.training.package.verdict import judge

    try:
        expectation = Expectation.model_validate(json.loads(verdict.read_text())["expectation"])
    except (ValueError, KeyError, TypeError) as error:
        # pydantic's ValidationError is a ValueError with a multi-line text.
        why = problems(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
        fail(f"{verdict}: is not the verdict of a training run: {why}. Fix: name its verdict.json", USAGE)
    source = Source()
    with open_log(str(log)) as stream:
        blocks = source.blocks(source.chunks(stream))
        read = read_lines(line for block in blocks for line in block.splitlines(keepends=True))
    found = judge(read, expectation, missing=(source.truncated,) if source.truncated else ())
    for each in found.checks:
        typer.echo(f"{each.status:<13}{each.name:<12}{each.reason}")
    typer.echo(f"\n{found.verdict.upper()}")
    raise typer.Exit(found.exit_code)
