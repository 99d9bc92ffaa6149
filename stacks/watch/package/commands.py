"""`busbar watch`: the configuration of stacks/watch, its size, and busbar's series in the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.output import fail, progress
from busbar.cli.stackfile import (
    Project,
    SecretError,
    Stack,
    find_file,
    findings_end_the_command,
    read_outputs,
)

if TYPE_CHECKING:
    from pathlib import Path

    from stacks.watch.package.config import Watch

Nodes = Annotated[int, typer.Option(min=1, help="Nodes of the cluster whose series are estimated.")]
Gpus = Annotated[int, typer.Option(min=1, help="GPUs of each node.")]
Rails = Annotated[int, typer.Option(min=1, help="Rails of each node.")]


def register(group: typer.Typer) -> None:
    """Add the commands to `busbar watch`."""
    group.command("check-config")(check_config)
    group.command("refresh")(refresh)
    for name, command in (("survey", survey), ("write", write), ("check", check)):
        group.command(name, hidden=True)(command)


def check_config(
    stack: Stack, project: Project = None, nodes: Nodes = 440, gpus: Gpus = 8, rails: Rails = 8
) -> None:
    """Validate a stack's configuration, and estimate the size of a cluster's series; nothing is changed.

    Exit code 0: valid; 1: errors; 64: no such stack.
    """
    from stacks.watch.package.sizing import estimate

    path, watch = _read(stack, project)
    typer.echo(f"OK  {path.name}")
    typer.echo(f"    cluster {watch.cluster}, Prometheus: {watch.stack.mode}, namespace {watch.namespace}")
    typer.echo(f"    {estimate(watch, nodes, gpus, rails)}")


def refresh(stack: Stack, project: Project = None) -> None:
    """Write busbar's series into the cluster anew, from the outputs of the cluster's stack as they are now.

    Run it after an update of the cluster, also a failed one. Exit code 0: written; 1: the outputs cannot be
    read, or the cluster refuses; 64: no such stack.
    """
    import json
    from datetime import UTC, datetime

    from busbar.kube.client import ApiError, RestApi
    from busbar.outputs import ClusterOutputs, ContractError
    from stacks.watch.package import series

    path, watch = _read(stack, project)
    try:
        outputs = json.loads(read_outputs(watch.cluster, path.parent))
        cluster = ClusterOutputs.from_dict(outputs)
        found = series.write(
            RestApi(str(cluster.kubeconfig)), series.SeriesSpec.of(cluster, watch), datetime.now(UTC)
        )
    except (SecretError, ContractError, ApiError, ValueError) as error:
        fail(f"{watch.cluster}: {error}", 1)
    typer.echo(_line(found))


def survey() -> None:
    """Name what on the cluster is in the way; the request is JSON on stdin (survey.SurveySpec).

    The cluster: KUBECONFIG. Prints {"findings": []}; exits with 1 and every finding where there is one.
    """
    from busbar.cli.cluster import command_on_cluster
    from stacks.watch.package.survey import SurveySpec, findings

    with command_on_cluster(SurveySpec) as (api, spec):
        if found := findings(api, spec):
            fail("nothing was installed:\n" + "\n".join(f"  - {each}" for each in found), 1)
        typer.echo(_line({"findings": []}))


def write() -> None:
    """Write busbar's series into the cluster; the request is JSON on stdin (series.SeriesSpec).

    The cluster: KUBECONFIG. Prints {"series", "quarantined"}.
    """
    from datetime import UTC, datetime

    from busbar.cli.cluster import command_on_cluster
    from stacks.watch.package import series

    with command_on_cluster(series.SeriesSpec) as (api, spec):
        typer.echo(_line(series.write(api, spec, datetime.now(UTC))))


def check() -> None:
    """Wait until the monitoring is seen to work; the request is JSON on stdin (check.CheckSpec).

    The cluster: KUBECONFIG. Prints {"passed", "reasons", "nodes"}; the exit code is 0 for any result.
    """
    from busbar.cli.cluster import command_on_cluster
    from busbar.kube.wait import SystemClock
    from stacks.watch.package import check as checks

    with command_on_cluster(checks.CheckSpec) as (api, spec):
        typer.echo(_line(checks.check(api, spec, SystemClock(), progress)))


def _read(stack: str, project: Path | None) -> tuple[Path, Watch]:
    from stacks.watch.package import config

    path = find_file(stack, project)
    with findings_end_the_command(path):
        return path, config.read(path)


def _line(found: dict[str, Any]) -> str:
    import json

    return json.dumps(found, sort_keys=True)
