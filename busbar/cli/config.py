"""`busbar schema` and `busbar check-config`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.stackfile import Project, Stack, load_stack
from busbar.text import listed

if TYPE_CHECKING:
    from busbar.config import Cluster
    from busbar.hosts.inventory import Inventory


def schema(
    details: Annotated[
        bool, typer.Option("--details", help="Print the schema of the output `details` instead.")
    ] = False,
) -> None:
    """Print the JSON Schema of a stack file, for editors."""
    from busbar.config.schema import stack_schema
    from busbar.outputs.details import details_schema

    typer.echo(json.dumps(details_schema() if details else stack_schema(), indent=2))


def check_config(stack: Stack, project: Project = None) -> None:
    """Validate a stack's configuration; nothing is changed.

    Exit code 0: valid; 1: errors; 64: no such stack.
    """
    from busbar.config import warnings
    from busbar.config.places import located

    file, cluster = load_stack(stack, project)
    typer.echo(f"OK  {file.path.name}")
    for line in describe(cluster):
        typer.echo(f"    {line}")
    for note in located(file.path, warnings(cluster)):
        typer.echo(f"    warning: {note}")


def describe(cluster: Cluster) -> list[str]:
    """The configuration in a few lines: hosts by role, pools, versions, and the expected bandwidth."""
    from busbar import versions
    from busbar.hosts.inventory import Inventory
    from busbar.hosts.nfs import export_of

    inventory = Inventory.of(cluster)
    lines = [f"cluster {cluster.name}, API at {inventory.api_endpoint}"]
    for title, hosts in (
        ("load balancers", inventory.load_balancers),
        ("servers", inventory.servers),
        ("workers", inventory.workers),
    ):
        lines.append(f"{title}: {len(hosts)} ({listed([f'{host.name} {host.address}' for host in hosts])})")
    if export := export_of(inventory):
        lines.append(
            f"NFS server: {export.host.name} exports {export.host.address}:{export.folder} to the workers"
        )
    for name, pool in cluster.pools.items():
        lines.append(
            f"pool {name}: {len(inventory.workers_of(name))} workers, {pool.gpus} GPUs and {pool.rails} "
            f"rails per worker, {pool.rate_gbps:g} Gb/s per rail ({pool.link_layer})"
        )
    known = versions.known_set(
        cluster.k3s.version, cluster.gpu_operator.version, cluster.network_operator.version
    )
    lines.append(
        f"K3s {cluster.k3s.version}, GPU Operator {cluster.gpu_operator.version}, "
        f"Network Operator {cluster.network_operator.version}"
        + (f" (set {known.name}: {known.note})" if known else "")
    )
    return [*lines, *_measurement(cluster, inventory)]


def _measurement(cluster: Cluster, inventory: Inventory) -> list[str]:
    """What is measured per pool, and the bandwidth it must reach."""
    from busbar.collect.spec import expectation
    from busbar.judge.nccl.expected.expectation import Expectation
    from busbar.manifests.nccljob import resolve

    if not cluster.validation.enabled:
        return []
    lines: list[str] = []
    for pool in cluster.pools:
        job = resolve(cluster, pool, [host.name for host in inventory.usable_of(pool)])
        of_pool = expectation(cluster.validation_of(pool), job, "job")
        wanted = Expectation.model_validate(of_pool)
        for collective in job.collectives:
            bounds = wanted.bounds(collective)
            number = (
                f"expected {bounds.expected:.4g} GB/s, floor {bounds.floor:.4g} GB/s"
                if bounds.expected is not None and bounds.floor is not None
                else f"no expected bandwidth ({bounds.reasoning[-1]})"
            )
            lines.append(f"validation of {pool}: {collective} over {job.transport}, {number}")
    return lines
