"""Steps on the Nodes of a running cluster, through its API (busbar/kube/)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_command import local

from busbar.kube import batches
from busbar.kube.client import ApiError
from busbar.kube.wait import TimedOut
from components.engine.local_command import ClusterCommandArgs, create_cluster_command
from components.engine.removal import stack_folder


@dataclass(frozen=True, kw_only=True)
class NodeStepArgs:
    """`taints`: of every worker of the configuration, KEY=VALUE:EFFECT, by its name."""

    taints: Mapping[str, Sequence[str]]
    kubeconfig: pulumi.Input[str]


def set_taints(name: str, args: NodeStepArgs, opts: pulumi.ResourceOptions) -> local.Command:
    """Register the Command that sets changed taints of workers that have joined.

    It depends on no worker: one that fails keeps none of the others from its taints.
    """
    command = ClusterCommandArgs(
        command=["set-taints"], spec={"taints": args.taints}, kubeconfig=args.kubeconfig, triggers=[]
    )
    return create_cluster_command(name, command, opts)


def remove_stale_nodes(name: str, args: NodeStepArgs, opts: pulumi.ResourceOptions) -> local.Command:
    """Register the Command that drains and deletes the Nodes of workers that are not configured any more.

    It runs whenever the set of workers has changed, after the pools and what was measured. The engine
    uninstalls those hosts at the end of the update, and only if no step has failed.
    """
    command = ClusterCommandArgs(
        command=["remove", "nodes"],
        spec={"workers": sorted(args.taints), "folder": stack_folder()},
        kubeconfig=args.kubeconfig,
        triggers=[],
    )
    return create_cluster_command(name, command, opts)


async def fail_unless_ready(args: NodeStepArgs) -> None:
    """Raise pulumi.RunError if the Node of a worker is not Ready, or if the API does not answer.

    Its step may have had nothing to do: the engine compares configurations, and knows nothing of an agent
    that has crashed since.
    """
    kubeconfig = await pulumi.Output.from_input(args.kubeconfig).future()
    if pulumi.runtime.is_dry_run() or kubeconfig is None:
        return
    try:
        found = await asyncio.to_thread(batches.ask, kubeconfig, jobs=False)
    except ValueError as error:
        pulumi.warn(f"whether the workers' agents run is unknown: {error}")
        return
    except (ApiError, TimedOut) as error:
        raise pulumi.RunError(f"whether the workers' agents run is unknown: {error}") from None
    if down := sorted(args.taints.keys() & found.names - found.ready):
        raise pulumi.RunError(
            f"{', '.join(down)}: the Node is not Ready. Fix: see journalctl -u k3s-agent there, repair the "
            "host and retry; or take it out of hosts.workers"
        )
