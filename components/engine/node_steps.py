"""Steps on the Nodes of a running cluster, through its API (busbar/kube/)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pulumi
from pulumi_command import local

from busbar.capability import drain_hooks
from busbar.components.engine.local_command import create_cluster_command
from busbar.config import Cluster
from busbar.exits import Failed
from busbar.finding import STACK, Finding, Fix, with_fix
from busbar.hosts import k3s, scripts
from busbar.hosts.inventory import Inventory
from busbar.kube import batches, health
from busbar.kube import nodes as cluster_servers
from busbar.kube.client import ASK_VERIFY, ApiError, RestApi, UnknownAuthority, read_kubeconfig_again
from busbar.kube.drain import drain_for_restart, put_back
from busbar.kube.wait import SystemClock, TimedOut


def set_taints(
    name: str, inventory: Inventory, kubeconfig: pulumi.Input[str], opts: pulumi.ResourceOptions
) -> local.Command:
    """Register the Command that sets changed labels, taints and quarantines. It depends on no worker."""
    spec = {
        "taints": k3s.worker_taints(inventory),
        "labels": k3s.worker_labels(inventory),
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
    return create_cluster_command(name, "remove nodes", {"workers": sorted(workers)}, kubeconfig, opts)


def restart_hooks(
    name: str, workers: Mapping[str, str], kubeconfig: pulumi.Input[str], *, seconds: float
) -> pulumi.ResourceHookBinding:
    """Hooks that drain a worker whose agent has to restart: its Command fails then, and runs again.

    Only the script on the host knows whether it has to (host/k3s-agent.sh). `workers`: name of a Command ->
    its worker. `seconds`: how long a drain may take.
    """
    drained: set[str] = set()
    # A drain takes minutes, and the event loop's own threads are few.
    threads = ThreadPoolExecutor(len(workers) or 1)

    async def on_cluster(step: Callable[[RestApi], None]) -> None:
        text = str(await pulumi.Output.from_input(kubeconfig).future())
        await asyncio.get_running_loop().run_in_executor(threads, lambda: step(RestApi(text)))

    async def drain(command: str) -> None:
        loop, node, clock = asyncio.get_running_loop(), workers[command], SystemClock()

        def say(line: str) -> None:
            loop.call_soon_threadsafe(pulumi.log.info, line)

        drained.add(command)
        await on_cluster(
            lambda api: drain_for_restart(api, node, partial(drain_hooks, api), seconds, clock, say)
        )

    async def end(command: str) -> None:
        await on_cluster(
            lambda api: put_back(api, workers[command], partial(drain_hooks, api), SystemClock())
        )

    async def before(args: pulumi.ResourceHookArgs) -> None:
        # An update that was interrupted may have left the worker cordoned.
        await end(args.name)

    async def after(args: pulumi.ResourceHookArgs) -> None:
        if args.name in drained:
            await end(args.name)

    async def failed(args: pulumi.ErrorHookArgs) -> bool:
        if scripts.NOT_DRAINED in args.errors[0].splitlines() and args.name not in drained:
            try:
                await drain(args.name)
                return True
            except Failed as error:
                pulumi.log.error(str(error))
        if args.name in drained:
            await end(args.name)
        return False

    begins, ends = pulumi.ResourceHook(f"{name}-begin", before), pulumi.ResourceHook(f"{name}-back", after)
    return pulumi.ResourceHookBinding(
        # A step that has failed before is replaced.
        before_create=[begins],
        before_update=[begins],
        after_create=[ends],
        after_update=[ends],
        on_error=[pulumi.ErrorHook(f"{name}-drain", failed)],
    )


async def fail_unless_ready(
    cluster: Cluster, servers: Sequence[str], workers: Iterable[str], kubeconfig: pulumi.Input[str]
) -> None:
    """Raise pulumi.RunError if a server does not serve, a worker is not Ready, the cluster does not work
    (busbar.kube.health), or the API is not responding.

    For workers that `busbar drain` has taken out it only prints their names; their machines may be off.

    This is for hosts whose step had nothing to do: the engine does not notice one that has crashed since.
    """
    text = await pulumi.Output.from_input(kubeconfig).future()
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
        next_step = read_kubeconfig_again(servers[0]) if isinstance(cause, UnknownAuthority) else ASK_VERIFY
        raise pulumi.RunError(with_fix(what, next_step)) from None
    for name in sorted({*workers} & found.drained.keys()):
        pulumi.warn(f"{name} is not waited for, it was drained: {found.drained[name]}")
    expected = sorted({*workers} - found.drained.keys())
    missing = [name for name in expected if name.lower() not in found.names]
    down = [name for name in expected if name.lower() in found.names - found.ready]
    wrong = [*problems, *unable]
    if missing:
        wrong.append(cluster_servers.without_node(*missing))
    if down:
        fix = Fix(
            "journalctl -u k3s-agent -n 50 --no-pager there says why; repair the host, put it in quarantine, "
            "or take it out of hosts.workers, then",
            ("up", STACK),
            f", with --converge {','.join(down)} where K3s is gone",
        )
        wrong.append(Finding((", ".join(down),), "the Node is not Ready", fix))
    if wrong:
        raise pulumi.RunError("\n".join(str(each) for each in wrong))
