"""`busbar wait`: until workers offer the devices that their pool expects, or the API answers."""

from __future__ import annotations

import typer


def register(group: typer.Typer) -> None:
    """Add `wait` with its sub-commands to the top level."""
    wait = typer.Typer(help="Wait for a state of the cluster, with a deadline.", no_args_is_help=True)
    wait.command("allocatable")(allocatable)
    wait.command("api")(api)
    group.add_typer(wait, name="wait", hidden=True)


def allocatable() -> None:
    """Wait for extended resources on the nodes; the request is JSON on stdin.

    stdin: {"resource": "nvidia.com/gpu", "nodes": {"worker-1": 8}, "deadline_seconds": 1800}; also
    "stable_seconds", "policy", "namespace" and "fix". The cluster: KUBECONFIG. Prints {"resource", "nodes"}
    when all nodes are ready; otherwise prints on stderr which nodes lack what, and exits with 1.
    """
    import json

    from busbar.cli.cluster import command_on_cluster
    from busbar.cli.output import fail, progress
    from busbar.kube import allocatable as kube
    from busbar.kube.wait import SystemClock

    with command_on_cluster(kube.AllocatableSpec) as (api, spec):
        try:
            kube.wait(api, spec, SystemClock(), progress)
        except kube.NotAllocatable as error:
            fail(error, 1)
        typer.echo(json.dumps({"resource": spec.resource, "nodes": spec.nodes}, sort_keys=True))


def api() -> None:
    """Wait for /readyz of the Kubernetes API; the request is JSON on stdin.

    stdin: {"setting": "api_endpoint", "fix": "...", "deadline_seconds": 300}. The cluster: KUBECONFIG. Prints
    {"server"} when it answers; otherwise prints why it does not, and exits with 1.
    """
    import json

    from busbar.cli.cluster import command_on_cluster
    from busbar.cli.output import fail, progress
    from busbar.kube import endpoint
    from busbar.kube.wait import SystemClock

    with command_on_cluster(endpoint.EndpointSpec) as (client, spec):
        try:
            endpoint.wait(client, spec, SystemClock(), progress)
        except endpoint.NotReachable as error:
            fail(error, 1)
        typer.echo(json.dumps({"server": client.server}))
