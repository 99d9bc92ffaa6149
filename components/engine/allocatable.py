"""The wait until every worker offers the devices of its pool to the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_command import local

from busbar.config import Pool
from busbar.manifests.operators import Operator, OperatorConfig
from components.engine.local_command import ClusterCommandArgs, create_cluster_command
from components.engine.release import OperatorArgs


@dataclass(frozen=True, kw_only=True)
class AllocatableArgs:
    """`devices`: how many of `resource` a worker of a pool must offer."""

    cluster: OperatorArgs
    operator: Operator
    config: OperatorConfig
    resource: str
    devices: Callable[[Pool], int]
    triggers: Sequence[pulumi.Input[Any]]


def create_allocatable_wait(name: str, args: AllocatableArgs, opts: pulumi.ResourceOptions) -> local.Command:
    """Run `busbar wait allocatable` (busbar.kube.allocatable) for all workers."""
    inventory = args.cluster.inventory
    return create_cluster_command(
        name,
        ClusterCommandArgs(
            command=("wait", "allocatable"),
            spec=args.operator.wait_request(
                args.config,
                args.resource,
                {
                    worker.name: args.devices(pool)
                    for pool_name, pool in inventory.cluster.pools.items()
                    for worker in inventory.workers_of(pool_name)
                },
            ),
            kubeconfig=args.cluster.kubeconfig,
            triggers=args.triggers,
        ),
        opts,
    )
