"""Steps on the Nodes of a running cluster, through its API (busbar/kube/)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_command import local

from components.engine.local_command import ClusterCommandArgs, create_cluster_command


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
        spec={"workers": sorted(args.taints)},
        kubeconfig=args.kubeconfig,
        triggers=[],
    )
    return create_cluster_command(name, command, opts)
