"""`busbar drain` and `busbar uncordon`: take a worker out for a repair, and bring it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.ending import when_interrupted
from busbar.cli.output import fail, progress
from busbar.cli.stackfile import Project, Stack, cluster_api, find_file, load_stack
from busbar.exits import FAILED, USAGE

if TYPE_CHECKING:
    from pathlib import Path

    from busbar.hosts.host import Host
    from busbar.hosts.inventory import Inventory
    from busbar.kube.allocatable import AllocatableSpec
    from busbar.kube.client import RestApi

# The wait in seconds for GPUs and HCAs: after a reboot the GPU Operator first validates the driver again.
OFFER_SECONDS = 300
Worker = Annotated[str, typer.Argument(metavar="HOST", help="Name of a worker.")]


def drain(
    stack: Stack,
    host: Worker,
    reason: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Why; kept on the Node, and shown by status, verify and nodes."),
    ] = "no reason given",
    end_jobs: Annotated[
        bool,
        typer.Option(
            "--end-jobs",
            help="Also evict pods that nothing starts again: those of jobs, and those without a controller.",
        ),
    ] = False,
    project: Project = None,
) -> None:
    """Cordon a worker for a repair, and wait until its pods have left.

    Disruption budgets are honoured. Pods of jobs and without a controller are waited for, those of DaemonSets
    stay. After pools.NAME.drain_timeout_seconds the command ends; the worker stays cordoned also then. No
    update undoes that, or waits for the worker. Run it again to go on, or to change the reason.

    Exit code 0: drained; 1: pods remain, or the API refuses; 64: no such stack or worker.
    """
    from busbar.capability import drain_hooks, notify
    from busbar.cli.operation import operations_of
    from busbar.kube import drain as kube
    from busbar.kube.wait import SystemClock
    from busbar.operations.lock import requester

    path = find_file(stack, project)
    if own := operations_of(path):
        typer.echo(own.drain(path, host, reason, end_jobs=end_jobs))
        return
    inventory, worker, api = _worker(stack, host, project)
    pool = inventory.cluster.pools[worker.pool or ""]
    stays = f"{host} stays cordoned. Fix: run the same command again, or busbar uncordon {stack} {host}"
    with when_interrupted(f"; {stays}"):
        try:
            kube.drain(
                api,
                worker.name,
                reason,
                requester(),
                end_jobs=end_jobs,
                seconds=pool.drain_timeout_seconds,
                clock=SystemClock(),
                progress=progress,
                hooks=drain_hooks(api, worker.name, reason, end_jobs=end_jobs),
            )
        except kube.PodsRemain as error:
            fail(f"{error}; {stays}", FAILED)
        finally:
            notify(lambda: api, progress)
    typer.echo(f"{host} is drained; when its repair is done: busbar uncordon {stack} {host}")


def uncordon(stack: Stack, host: Worker, project: Project = None) -> None:
    """Let pods start again on a worker that `busbar drain` has taken out.

    First it must be Ready and offer the GPUs and HCAs of its pool; that is waited for, five minutes at most.
    One in quarantine comes back without them. A cordon of somebody else stays.

    Exit code 0: pods can start there; 1: it was not drained, lacks something, or stays cordoned; 64: no such
    stack or worker.
    """
    from functools import partial

    from busbar.capability import drain_hooks, notify
    from busbar.cli.operation import operations_of
    from busbar.kube import drain as kube
    from busbar.kube.wait import SystemClock

    path = find_file(stack, project)
    if own := operations_of(path):
        typer.echo(own.uncordon(path, host))
        return
    inventory, worker, api = _worker(stack, host, project)
    hooks, needs = partial(drain_hooks, api), _needs(inventory, worker)
    if not kube.uncordon(api, worker.name, needs, SystemClock(), progress, hooks):
        fail(
            f"{host} is not drained any more, and stays cordoned for another reason: busbar verify {stack}",
            FAILED,
        )
    notify(lambda: api, progress)
    typer.echo(f"{host} is back: pods can start there")


def _worker(stack: str, name: str, project: Path | None) -> tuple[Inventory, Host, RestApi]:
    """A worker of a stack, and a client of its cluster. Ends the command with 64 for any other host."""
    from busbar.config.errors import did_you_mean
    from busbar.hosts.inventory import Inventory

    file, cluster = load_stack(stack, project)
    inventory = Inventory.of(cluster)
    workers = {worker.name: worker for worker in inventory.workers}
    if name not in workers:
        fail(f"{name} is not a worker of {file.path.name}{did_you_mean(name, workers)}", USAGE)
    return inventory, workers[name], cluster_api(file, cluster)


def _needs(inventory: Inventory, worker: Host) -> list[AllocatableSpec]:
    """Resources that the worker must offer before jobs may start there; none in quarantine."""
    from busbar.kube.allocatable import AllocatableSpec
    from busbar.manifests.operators import GPU_OPERATOR, NETWORK_OPERATOR
    from busbar.manifests.scheduling import GPU_RESOURCE

    cluster, name = inventory.cluster, worker.name
    pool, network = cluster.pools[worker.pool or ""], cluster.network_operator
    requests = [GPU_OPERATOR.wait_request(cluster.gpu_operator, GPU_RESOURCE, {name: pool.gpus})]
    if network.enabled:
        requests.append(NETWORK_OPERATOR.wait_request(network, network.resource, {name: pool.rails}))
    held = worker.name in inventory.quarantine
    # An operator's policy counts all Nodes, and another Node may be broken; its own pod is on another one.
    for each in requests:
        each |= {"deadline_seconds": OFFER_SECONDS, "policy": None}
        if each.get("rollout"):
            each["rollout"]["lease"] = None
    return [AllocatableSpec.model_validate(each) for each in ([] if held else requests)]
