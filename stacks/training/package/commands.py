"""`busbar training`: the configuration of stacks/training, its log judged again, and what `verify` asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.output import fail, print_text
from busbar.cli.stackfile import AsJson
from busbar.exits import USAGE

if TYPE_CHECKING:
    from busbar.config import Finding
    from busbar.kube.client import RestApi
    from busbar.outputs import ClusterOutputs
    from stacks.training.package.config import Training


def register(group: typer.Typer) -> None:
    """Add the commands to `busbar training`."""
    group.command("check")(check)


def describe(path: Path) -> tuple[list[str], list[Finding]]:
    """A stack file in a few lines, and the warnings on it. Raises ConfigError."""
    from stacks.training.package.config import CONFIG

    return [*_describe(CONFIG.read(path))], []


def _describe(training: Training) -> Iterator[str]:
    """The cluster, the run, its expectation, and the installed software."""
    from busbar.judge.nccl.units import share, size

    proof, trainer, storage = training.proof, training.trainer, training.storage
    yield f"cluster {training.cluster}, pools: {', '.join(training.pools) or 'all'}"
    if proof.enabled:
        gradients = size(proof.gradient_bytes) if proof.gradient_bytes else "the largest size to 1 GiB"
        yield (
            f"training run: {proof.backend}, {proof.steps} steps, gradients of {gradients}, "
            f"image {proof.image}, at most {proof.deadline_seconds} s per pool"
        )
        without = "" if proof.enforce else "; `pulumi up` succeeds without (proof.enforce: false)"
        yield (
            f"expected: loss lower by {share(proof.min_loss_drop)}, all-reduce at "
            f"{share(proof.min_busbw_fraction)} of the measured busbw{without}"
        )
    else:
        yield "no training run (proof.enabled: false): training_passed is false"
    for pool, networks in training.networks.items():
        listed = ", ".join(f"{each.name} ({each.type}, {each.subnet})" for each in networks)
        yield f"networks of pool {pool}: {listed or 'none'}"
    if storage.is_shared:
        source = storage.path or storage.class_name
        if nfs := storage.nfs:
            source = "of the cluster (nfs_server)" if nfs.from_cluster else f"{nfs.server}:{nfs.export}"
        yield f"shared storage: {storage.mode} {source}"
    yield f"Kubeflow Trainer: {f'{trainer.version}, {trainer.chart}' if trainer.enabled else 'not installed'}"
    if training.training_operator.enabled:
        yield f"Training Operator: {training.training_operator.image}"


def ready(training: Training, cluster: ClusterOutputs, api: RestApi) -> list[Finding]:
    """Find what of the installed software does not work (busbar.capability.Capability.ready)."""
    from busbar.frame import unready
    from stacks.training.package import networks, storage, target, trainer

    charts = (trainer.TRAINER, trainer.TRAINING_OPERATOR, networks.MULTUS)
    claimed = target.with_cluster_export(cluster, training).storage
    return [
        *unready(api, [each.namespace for each in charts]),
        *storage.unbound(api, claimed, training.namespace),
    ]


_FILE: dict[str, Any] = {"metavar": "FILE", "exists": True, "dir_okay": False}
_VERDICT = "verdict.json of a run, whose expectation is used; default: the one beside the log."


def check(
    log: Annotated[Path, typer.Argument(help="Log of a run: plain, .gz or .zst (by content).", **_FILE)],
    verdict: Annotated[Path | None, typer.Option(help=_VERDICT, **_FILE)] = None,
    as_json: AsJson = False,
) -> None:
    """Judge the log of a training run again: the verdict with its first cause, then every check.

    Exit code 0: pass; 1: fail; 2: no verdict because evidence is missing; 64: bad usage.
    """
    from pydantic import ValidationError

    from busbar.judge.archive import VERDICT
    from busbar.judge.nccl.log.source import Source, open_log
    from busbar.models import problems
    from stacks.training.package.log import read_lines
    from stacks.training.package.verdict import Kept, judge

    path = verdict or log.parent / VERDICT
    if not path.is_file():
        fail(f"{path}: no such file. Fix: --verdict FILE, the verdict.json of the run", USAGE)
    try:
        kept = Kept.model_validate_json(path.read_bytes())
    except ValidationError as error:
        why = f"{path}: is not the verdict of a training run: {problems(error)}"
        fail(f"{why}. Fix: name its verdict.json, or train again (raise proof.run)", USAGE)
    source = Source()
    with open_log(str(log)) as stream:
        blocks = source.blocks(source.chunks(stream))
        read = read_lines(line for block in blocks for line in block.splitlines(keepends=True))
    found = judge(read, kept.expectation, missing=(source.truncated,) if source.truncated else ())
    if as_json:
        print_text(found.model_dump_json(indent=1))
    else:
        first = next(iter(found.reasons), "")
        print_text(f"{found.verdict.upper():<8}{first}".rstrip())
        typer.echo()
        for each in found.checks:
            print_text(f"{each.status:<13}{each.name:<12}{each.reason}")
    raise typer.Exit(found.exit_code)
