"""`busbar schema` and `busbar check-config`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.ending import show_findings
from busbar.cli.output import fail
from busbar.cli.stackfile import STACK_HELP, Project, Stack, capability_of, find_file, stack_argument
from busbar.exits import USAGE
from busbar.text import counted, listed

if TYPE_CHECKING:
    from busbar.capability import Capability
    from busbar.config import Cluster
    from busbar.hosts.inventory import Inventory


def schema(
    stack: Annotated[
        str | None, stack_argument(f"{STACK_HELP} Without it: the project of this folder.")
    ] = None,
    project: Project = None,
) -> None:
    """Print the JSON Schema of a stack file, for editors: of the cluster's project, or of a capability's."""
    from busbar.capability import of_project
    from busbar.config import stackfile
    from busbar.config.schema import stack_schema

    if stack:
        capability = capability_of(find_file(stack, project))
    else:
        name = stackfile.project_name(stackfile.project_folder(project, Path.cwd()))
        capability = of_project([name] if name else [])
    found = capability.stack_schema() if capability else stack_schema()
    typer.echo(json.dumps(found, indent=2))


def check_config(stack: Stack, project: Project = None) -> None:
    """Validate a stack's configuration, of any project of busbar; nothing is changed.

    In a site, the files of this stack in the projects of its folders are validated too.

    Exit code 0: valid; 64: errors, or no such stack.
    """
    from busbar.capability import of_project
    from busbar.config import ConfigError, stackfile

    folder = None if stack.endswith((".yaml", ".yml")) else stackfile.project_folder(project, Path.cwd())
    below = sorted(folder.glob(f"*/Pulumi.{stack.rpartition('/')[2]}.yaml")) if folder else []
    projects = {path: stackfile.project_name(path.parent) or "" for path in below}
    found = {path: known for path, name in projects.items() if (known := of_project([name]))}
    try:
        path = find_file(stack, project)
        checked: dict[Path, Capability | None] = {path: capability_of(path), **found}
    except stackfile.NoStackFileError:
        if not found:
            raise
        checked = {**found}
    wrong = []
    for path, capability in checked.items():
        try:
            check(path, capability)
        except ConfigError as error:
            wrong.append(show_findings(path, error.findings))
    if wrong:
        fail("; ".join(wrong), USAGE)


def check(path: Path, capability: Capability | None) -> None:
    """Print a summary of a stack file, and its warnings. Raises ConfigError."""
    from busbar.config import stackfile, warnings
    from busbar.config.places import located

    if capability:
        lines, found = capability.describe(path)
    else:
        cluster = stackfile.read(path).cluster()
        lines, found = describe(cluster), warnings(cluster)
    typer.echo("\n".join([f"OK  {path.name}", *(f"    {line}" for line in lines)]))
    for note in located(path, found):
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
        has = f"{counted(pool.gpus, 'GPU')} and {counted(pool.rails, 'rail')} per worker"
        lines.append(
            f"pool {name}: {counted(len(inventory.workers_of(name)), 'worker')}, {has}, "
            f"{pool.rate_gbps:g} Gb/s per rail ({pool.link_layer})"
        )
    operators = {"GPU Operator": cluster.gpu_operator, "Network Operator": cluster.network_operator}
    installed = {title: each.version for title, each in operators.items() if each.enabled}
    is_set = len(installed) == len(operators)
    known = versions.known_set(cluster.k3s.version, *installed.values()) if is_set else None
    named = [f"{title} {installed[title]}" if title in installed else f"no {title}" for title in operators]
    lines.append(
        ", ".join([f"K3s {cluster.k3s.version}", *named])
        + (f" (set {known.name}: {known.note})" if known else "")
    )
    return [*lines, *_measurement(cluster, inventory)]


def _measurement(cluster: Cluster, inventory: Inventory) -> list[str]:
    """Lines about the measurement of each pool, and the bandwidth that it must reach."""
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
