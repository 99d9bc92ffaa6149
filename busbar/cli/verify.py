"""`busbar verify`: shows differences on the hosts of a stack and in its cluster; nothing is changed."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer

from busbar.cli.stackfile import (
    AsJson,
    Project,
    SecretError,
    Stack,
    find_file,
    kubeconfig_of,
    load_stack,
    login_of,
)
from busbar.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from busbar.config import Cluster
    from busbar.config.stackfile import StackFile
    from busbar.manifests.operators import Operator
    from busbar.operations.verify import ClusterState, Drift


def verify(
    stack: Stack,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Compare hosts and cluster with the configuration: files, units, Nodes, labels, taints, charts.

    Exit code 0: nothing differs; 1: something differs, or could not be verified; 64: no such stack, or one
    without hosts.
    """
    import asyncio

    from busbar.cli.operation import operations_of
    from busbar.hosts.inventory import Inventory
    from busbar.operations import verify as operation

    path = find_file(stack, project)
    if own := operations_of(path):
        own.verify(path, as_json)
        return
    file, cluster = load_stack(stack, project)
    login = login_of(file, cluster)
    found = asyncio.run(operation.verify(cluster, login, _expected(cluster), lambda: state_of(file, cluster)))
    hosts = [(host.name, host.role) for host in Inventory.of(cluster).hosts]
    end(file.stack, [*hosts, (operation.CLUSTER, "")], found, as_json=as_json)


def end(
    stack: str,
    rows: Sequence[tuple[str, str]],
    found: Sequence[Drift],
    *,
    as_json: bool,
    resume: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print the differences; the command ends with 1 if there are any. `rows`: each host and its role.

    `resume`: host -> the command that ends its drain, where that is not `busbar uncordon`.
    """
    from busbar.cli.output import print_text
    from busbar.operations import verify as operation

    if as_json:
        print_text(operation.as_json(stack, found))
    else:
        _show(stack, rows, found, resume)
    if found:
        raise typer.Exit(1)


def state_of(file: StackFile, cluster: Cluster, *of_capabilities: Any) -> ClusterState:
    """The state of the cluster, read with the kubeconfig of the state, else the one that `busbar up` kept.

    `of_capabilities`: as of read_state. Raises UnknownState.
    """
    from busbar.hosts.inventory import Inventory
    from busbar.operations.verify import UnknownState, read_state

    try:
        text = kubeconfig_of(file)
    except SecretError as error:
        raise UnknownState(str(error)) from None
    return read_state(text, Inventory.of(cluster), *of_capabilities)


def _expected(cluster: Cluster) -> list[Operator]:
    """The operators that the configuration enables."""
    from busbar.manifests import operators

    known = [each for each in vars(operators).values() if isinstance(each, operators.Operator)]
    return [operator for operator in known if getattr(cluster, operator.config_key).enabled]


def _show(
    stack: str, rows: Sequence[tuple[str, str]], found: Sequence[Drift], resume: Mapping[str, str]
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("host", "role", "state", box=None, pad_edge=False)
    for name, role in rows:
        differences = [each for each in found if each.host == name]
        if not differences:
            table.add_row(name, role, "as applied")
        for each in differences:
            table.add_row(name, role, f"{'unknown: ' if each.kind == 'unknown' else ''}{each.what}")
    Console(highlight=False, soft_wrap=True).print(table)
    if found:
        typer.echo(f"{counted(len(found), 'difference')}. Fix: {'; '.join(_fixes(stack, found, resume))}")


def _fixes(stack: str, found: Sequence[Drift], resume: Mapping[str, str]) -> Iterator[str]:
    """Fixes. A host that could not be verified, such as one that is not responding, cannot be converged."""
    unknown = {each.host for each in found if each.kind == "unknown"}
    if site := {each.host for each in found if each.kind == "site"} - unknown:
        yield f"repair what the rows of {', '.join(sorted(site))} name, because no update does"
    if drifted := {each.host for each in found if each.kind == "drift"} - unknown:
        yield f"busbar up {stack} --converge {','.join(sorted(drifted))}"
    if foreign := {each.host for each in found if each.kind == "foreign"}:
        yield f"undo on {', '.join(sorted(foreign))} what somebody else has set, or leave it"
    for name in sorted({each.host for each in found if each.kind == "drained"}):
        yield f"{resume.get(name, f'busbar uncordon {stack} {name}')} when its repair is done"
    if unknown:
        names = ", ".join(sorted(unknown))
        yield f"repair what keeps {names} from being verified, then busbar verify {stack}"
