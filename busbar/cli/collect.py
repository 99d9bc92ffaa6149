"""`busbar nccl collect`: from a running MPIJob to a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from busbar.collect.spec import JobSpec
    from busbar.kube.client import RestApi

Spec = TypeVar("Spec", bound="JobSpec")


def collect() -> None:
    """Follow an MPIJob's launcher and judge its log; the request is JSON on stdin.

    stdin: {"namespace", "job", "folder", "deadline_seconds", "expectation": {...}}. The cluster: KUBECONFIG.
    Prints the verdict in short as JSON (busbar.outputs.pool.summarize), or the former one that stays
    (busbar.outputs.kept). The log, the whole verdict and the report are written to `folder`, and a record for
    `busbar history` there and into the cluster. Exit code 0 for any verdict, also a failure; 1 when the
    cluster cannot be reached or refuses, or when restarting kubelets have rejected the job's pods twice, so
    that the next update measures again; 64 for a request that is not valid.
    """
    import json
    from pathlib import Path

    from busbar.cli.output import fail, progress
    from busbar.collect.busy import Kept
    from busbar.collect.collector import collect as follow
    from busbar.collect.spec import CollectSpec
    from busbar.hooks import call
    from busbar.judge.archive import VERDICT
    from busbar.kube.wait import SystemClock
    from busbar.outputs.pool import summarize

    with collecting(CollectSpec, "MPIJob", "the launcher's pod") as (api, spec):
        try:
            found = follow(api, spec, SystemClock(), progress)
        except Kept as kept:
            typer.echo(kept.printed)
            return
        if found.is_rejected:
            # The engine then keeps nothing, and runs this command again.
            why = f"starting kubelets have rejected its pods twice: {'; '.join(found.verdict['reasons'])}"
            fix = "Fix: when k3s-agent on the workers does not restart any more, update again, which measures"
            fail(f"MPIJob {spec.namespace}/{spec.job} was not measured, {why}. {fix}", 1)
        short = summarize(
            found.verdict,
            verdict_file=f"{spec.folder}/{VERDICT}",
            config_map=found.config_map,
            measured_at=found.measured_at,
        )
        folder = Path(spec.folder)
        call("verdict_made", api, folder.name, folder, found, spec, progress)
        typer.echo(json.dumps(short, sort_keys=True, separators=(",", ":")))


@contextmanager
def collecting(model: type[Spec], kind: str, where: str) -> Iterator[tuple[RestApi, Spec]]:
    """`command_on_cluster` for a collector: exits with 1 also where nothing is known of the job.

    `kind` is that of the job, `where` what has its log.
    """
    from busbar.cli.cluster import command_on_cluster
    from busbar.cli.output import fail
    from busbar.collect.watch import Unreachable

    with command_on_cluster(model) as (api, spec):
        try:
            yield api, spec
        except Unreachable as error:
            fail(
                f"no verdict on {kind} {spec.namespace}/{spec.job}: timed out after "
                f"{spec.deadline_seconds:.0f} s: {error}. The log is still in {where}. Fix: run "
                "the same command again when the API answers.",
                1,
            )
