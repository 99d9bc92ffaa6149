"""`busbar remove`: what the engine runs when a host is removed. Each request is JSON on stdin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from busbar.cli.operation import request, say

if TYPE_CHECKING:
    from collections.abc import Coroutine


def register(group: typer.Typer) -> None:
    """Add `remove` with its sub-commands to the top level."""
    remove = typer.Typer(help="What `pulumi up` and `destroy` run to remove hosts.", no_args_is_help=True)
    for command in (host, cluster, keep, nodes):
        remove.command(command.__name__)(command)
    group.add_typer(remove, name="remove", hidden=True)


def host() -> None:
    """Remove what busbar installed on a host. One that is gone is recorded and named, and stops nothing."""
    from pathlib import Path

    from busbar.operations import removal, uncleaned

    spec = request(removal.HostRemoval)
    if reason := _run(removal.remove_host(spec, say)):
        path = uncleaned.write(Path(spec.folder), spec.resource, spec.host, reason)
        say(f"could not be cleaned: {spec.host.name}: {reason}; recorded in {path}")


def cluster() -> None:
    """Tell the servers that the whole cluster is being removed: none of them has to leave etcd then."""
    from busbar.operations import removal

    _run(removal.announce_teardown(request(removal.Teardown), say))


def keep() -> None:
    """Tell the servers that the cluster stays: a `destroy` that was interrupted had told them otherwise."""
    from busbar.operations import removal

    _run(removal.announce_teardown(request(removal.Teardown), say, kept=True))


def nodes() -> None:
    """Drain and delete the Nodes of workers that are not configured any more; prints {"deleted"}.

    stdin: {"workers": ["gpu-1"], "folder": ".busbar/STACK"}. The cluster: KUBECONFIG.
    """
    import json
    import signal
    from pathlib import Path

    from busbar.cli.cluster import command_on_cluster
    from busbar.cli.output import fail, progress
    from busbar.kube import stale_nodes
    from busbar.kube.wait import SystemClock
    from busbar.operations import removal

    # On SIGTERM, uncordon the nodes that we cordoned.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with command_on_cluster(stale_nodes.StaleNodesSpec) as (api, spec):
        try:
            deleted = stale_nodes.remove(api, spec, SystemClock(), progress)
        except stale_nodes.NodesRemain as error:
            fail(error, 1)
        for name in (name for name, was_silent in deleted.items() if was_silent):
            removal.note_silent(Path(spec.folder), name)
        typer.echo(json.dumps({"deleted": [*deleted]}))


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    import asyncio

    from busbar.cli.output import error
    from busbar.hosts.remote import ScriptError

    try:
        return asyncio.run(work)
    except* (ScriptError, ValueError) as errors:
        for each in errors.exceptions:
            error(each)
        raise typer.Exit(1) from None
