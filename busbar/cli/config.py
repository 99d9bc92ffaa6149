"""`busbar schema` and `busbar check-config`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from busbar.config import Cluster
    from busbar.hosts.inventory import Inventory


def register(group: typer.Typer) -> None:
    """Add the commands to the top level."""
    group.command("schema")(schema)
    group.command("check-config")(check_config)


def schema() -> None:
    """Print the JSON Schema of a stack file, for editors."""
    from busbar.config.schema import stack_schema

    typer.echo(json.dumps(stack_schema(), indent=2))


def check_config(
    stack: Annotated[str, typer.Argument(metavar="STACK|FILE", help="Name of a stack, or its YAML file.")],
) -> None:
    """Check a stack's configuration without touching anything: exit 0 good, 1 findings, 64 no such stack."""
    from busbar.config import ConfigError, advice, load, stackfile
    from busbar.config.files import findings

    try:
        path = stackfile.find(stack, Path.cwd())
    except stackfile.NoStackFileError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        file = stackfile.read(path)
        cluster = load(file.cluster, secret_keys=file.secret_keys)
    except ConfigError as error:
        for finding in error.findings:
            typer.echo(finding)
        typer.echo(f"\n{path.name}: {len(error.findings)} to mend; nothing was touched", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"OK  {path.name}")
    for line in describe(cluster):
        typer.echo(f"    {line}")
    # Files that `make up` or a download has yet to bring are no fault of the configuration.
    for note in [*advice(cluster), *(f"not yet: {text}" for text in findings(cluster, path.parent))]:
        typer.echo(f"    note: {note}")


def describe(cluster: Cluster) -> list[str]:
    """The configuration in a few lines: hosts by role, pools, versions, what is measured against what."""
    from busbar import versions
    from busbar.hosts.inventory import Inventory

    inventory = Inventory.of(cluster)
    lines = [f"cluster {cluster.name}, API at {inventory.api_endpoint}"]
    for title, hosts in (
        ("load balancers", inventory.load_balancers),
        ("servers", inventory.servers),
        ("workers", inventory.workers),
    ):
        shown = ", ".join(f"{host.name} {host.address}" for host in hosts[:4])
        more = f", and {len(hosts) - 4} more" if len(hosts) > 4 else ""
        lines.append(f"{title}: {len(hosts)} ({shown}{more})")
    for name, pool in cluster.pools.items():
        lines.append(
            f"pool {name}: {len(inventory.workers_of(name))} workers, each {pool.gpus} GPUs and "
            f"{pool.rails} rails of {pool.rate_gbps:g} Gb/s ({pool.link_layer})"
        )
    known = versions.set_of(
        cluster.k3s.version, cluster.gpu_operator.version, cluster.network_operator.version
    )
    lines.append(
        f"K3s {cluster.k3s.version}, GPU Operator {cluster.gpu_operator.version}, "
        f"Network Operator {cluster.network_operator.version}"
        + (f" (set {known.name}: {known.note})" if known else "")
    )
    return [*lines, *_measurement(cluster, inventory)]


def _measurement(cluster: Cluster, inventory: Inventory) -> list[str]:
    """What will be measured, and the bandwidth that each pool has to reach."""
    from busbar.collect.spec import expectation
    from busbar.manifests.nccljob import resolve
    from busbar.nccl.expected.expectation import Expectation

    if not cluster.validation.enabled:
        return []
    lines: list[str] = []
    for pool in cluster.pools:
        job = resolve(cluster, pool, [host.name for host in inventory.workers_of(pool)])
        wanted = Expectation.model_validate(expectation(cluster, job, "job"))
        for collective in job.collectives:
            bounds = wanted.bounds(collective)
            number = (
                f"expected {bounds.expected:.4g} GB/s, floor {bounds.floor:.4g} GB/s"
                if bounds.expected is not None and bounds.floor is not None
                else f"no expected bandwidth ({bounds.reasoning[-1]})"
            )
            lines.append(f"measured on {pool}: {collective} over {job.transport}, {number}")
    return lines
