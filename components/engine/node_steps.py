"""Steps on the Nodes of a running cluster, through its API (busbar/kube/)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import pulumi
from pulumi_command import local

from busbar.capability import drain_hooks
from busbar.components.engine.hosts import stack_folder
from busbar.components.engine.local_command import create_cluster_command
from busbar.config import Cluster
from busbar.finding import Finding, with_fix
from busbar.hosts import k3s, scripts
from busbar.hosts.inventory import Inventory
from busbar.kube import batches, health
from busbar.kube import nodes as cluster_servers
from busbar.kube.client import ApiError, RestApi, UnknownAuthority, read_kubeconfig_again
from busbar.kube.drain import after_restart, before_restart
from busbar.kube.wait import SystemClock, TimedOut

Found = TypeVar("Found")


def set_taints(
    name: str, inventory: Inventory, kubeconfig: pulumi.Input[str], opts: pulumi.ResourceOptions
) -> local.Command:
    """Register the Command that sets changed taints and quarantines. It depends on no worker."""
    spec = {
        "taints": k3s.worker_taints(inventory),
        "quarantine": dict(inventory.quarantine),
        "cordon": [*inventory.cordoned],
    }
    return create_cluster_command(name, "set-taints", spec, kubeconfig, opts)


def remove_stale_nodes(
    name: str, workers: Iterable[str], kubeconfig: pulumi.Input[str], opts: pulumi.ResourceOptions
) -> local.Command:
    """Register the Command that drains and deletes the Nodes of workers that are not configured any more.

    It runs whenever the set of workers has changed, after the pools and the measurements. The engine
    uninstalls those hosts at the end of the update, and only if no step has failed.
    """
    spec = {"workers": sorted(workers), "folder": stack_folder()}
    return create_cluster_command(name, "remove nodes", spec, kubeconfig, opts)


def scheduler_hooks(
    name: str,
    workers: Mapping[str, str],
    kubeconfig: pulumi.Input[str],
    *,
    seconds: float,
    version: str | None,
) -> pulumi.ResourceHookBinding:
    """Hooks of Commands that may evict the pods of a worker (host/k3s-drain.sh): schedulers drain it before.

    `workers`: name of a Command -> its worker. `seconds`: how long that may take. `version`: that of K3s, if
    only an update from another one evicts pods.
    """
    asked: set[str] = set()

    async def before(args: pulumi.ResourceHookArgs) -> None:
        loop, node = asyncio.get_running_loop(), workers[args.name]

        def say(line: str) -> None:
            loop.call_soon_threadsafe(pulumi.log.info, line)

        def begin(api: RestApi) -> bool:
            hooks = partial(drain_hooks, api)
            return before_restart(api, node, hooks, seconds, SystemClock(), say, version=version)

        if await on_cluster(begin):
            asked.add(args.name)

    async def end(command: str) -> None:
        if command in asked:
            node = workers[command]
            await on_cluster(lambda api: after_restart(api, node, partial(drain_hooks, api)))

    async def on_cluster(step: Callable[[RestApi], Found]) -> Found:
        text = str(await pulumi.Output.from_input(kubeconfig).future())
        # In a thread, because the program's event loop serves the engine meanwhile.
        return await asyncio.to_thread(lambda: step(RestApi(text)))

    def after(args: pulumi.ResourceHookArgs) -> Awaitable[None] | None:
        return end(args.name) if asked else None

    async def failed(args: pulumi.ErrorHookArgs) -> bool:
        # Where the script was missing it runs again (script_delivery.py).
        if scripts.not_delivered(scripts.DELIVERED["worker"]) not in args.errors[0].splitlines():
            await end(args.name)
        return False

    begins, ends = pulumi.ResourceHook(f"{name}-drain", before), pulumi.ResourceHook(f"{name}-back", after)
    return pulumi.ResourceHookBinding(
        # A step that has failed before is replaced.
        before_create=[begins],
        before_update=[begins],
        after_create=[ends],
        after_update=[ends],
        on_error=[pulumi.ErrorHook(f"{name}-failed", failed)],
    )


async def fail_unless_ready(
    cluster: Cluster, servers: Sequence[str], workers: Iterable[str], kubeconfig: pulumi.Input[str]
) -> None:
    """Raise pulumi.RunError if a server does not serve, a worker is not Ready, the cluster does not work
    (busbar.kube.health), or the API is not responding.

    For workers that `busbar drain` has taken out it only prints their names; their machines may be off.

    This is needed for hosts whose step had nothing to do: the engine compares configurations, and does not
    notice a host that has crashed since.
    """
    text, stack = await pulumi.Output.from_input(kubeconfig).future(), pulumi.get_stack()
    if pulumi.runtime.is_dry_run() or text is None:
        return
    try:
        found = await asyncio.to_thread(batches.ask, text, jobs=False)
        problems = await asyncio.to_thread(cluster_servers.ask_servers, text, servers)
        unable = await asyncio.to_thread(health.await_health, text, cluster)
    except ValueError as error:
        pulumi.warn(f"it is unknown whether servers and workers are running: {error}")
        return
    except (ApiError, TimedOut) as error:
        what = f"it is unknown whether servers and workers are running: {error}"
        cause = error.error if isinstance(error, TimedOut) else error
        fix = read_kubeconfig_again(servers[0]).on(stack) if isinstance(cause, UnknownAuthority) else ""
        raise pulumi.RunError(with_fix(what, fix)) from None
    for name in sorted({*workers} & found.drained.keys()):
        pulumi.warn(f"{name} stays cordoned, it was drained: {found.drained[name]}")
    expected = sorted({*workers} - found.drained.keys())
    missing = [name for name in expected if name.lower() not in found.names]
    down = [name for name in expected if name.lower() in found.names - found.ready]
    wrong = [*problems, *unable]
    if missing:
        wrong.append(cluster_servers.without_node(*missing))
    if down:
        fix = (
            "journalctl -u k3s-agent -n 50 --no-pager there says why; repair the host, put it in quarantine, "
            "or take it out of hosts.workers; then busbar up STACK"
        )
        wrong.append(Finding((", ".join(down),), "the Node is not Ready", fix))
    if wrong:
        raise pulumi.RunError("\n".join(str(each.on(stack)) for each in wrong))
