"""`busbar watch`: the configuration of stacks/watch, and busbar's series in the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from busbar.cli.stackfile import Project, Stack, find_file, read_outputs
from busbar.exits import Failed, NoVerdict

if TYPE_CHECKING:
    from pathlib import Path

    from busbar.config import Finding


def register(group: typer.Typer) -> None:
    """Add the commands to `busbar watch`."""
    group.command("refresh")(refresh)


def describe(path: Path) -> tuple[list[str], list[Finding]]:
    """A stack file in a few lines, and the warnings on it. Raises ConfigError."""
    from busbar.config.findings import did_you_mean
    from busbar.finding import Finding
    from stacks.watch.package import config
    from stacks.watch.package.render import read_of_ports

    watch = config.read(path)
    known = [name for name in read_of_ports() if name.endswith("_total")]
    lines = [f"cluster {watch.cluster}, Prometheus: {watch.stack.mode}, namespace {watch.namespace}"]
    if watch.stack.enabled and "alertmanager" not in watch.stack.values:
        lines.append("alerts reach nobody: name receivers in stack.values, or by an AlertmanagerConfig")
    return lines, [
        Finding(
            ("missing_counters", number), f"is read by no rule{did_you_mean(name, known)}", "", repr(name)
        )
        for number, name in enumerate(watch.missing_counters)
        if name not in known
    ]


def refresh(stack: Stack, project: Project = None) -> None:
    """Write busbar's series into the cluster anew, from the outputs of the cluster's stack as they are now.

    Run it after an update of the cluster, also a failed one. Exit code 0: written; 1: the outputs cannot be
    read, or the cluster refuses; 64: no such stack.
    """
    import json

    from busbar.kube.client import RestApi
    from busbar.outputs import ClusterOutputs
    from stacks.watch.package import config, series

    path = find_file(stack, project)
    watch = config.read(path)
    try:
        outputs = json.loads(read_outputs(watch.cluster, path.parent))
        cluster = ClusterOutputs.from_dict(outputs)
        api = RestApi(str(cluster.kubeconfig))
        found = series.write_now(api, series.SeriesSpec.of(cluster, watch))
    except (NoVerdict, ValueError) as error:
        raise Failed(f"{watch.cluster}: {error}") from error
    typer.echo(json.dumps(found, sort_keys=True))
