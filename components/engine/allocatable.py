"""The wait until every worker offers its devices to the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_command import local

from busbar.manifests.operators import Operator, OperatorConfig
from components.engine.local_command import ClusterCommandArgs, create_cluster_command


@dataclass(frozen=True, kw_only=True)
class AllocatableArgs:
    """`nodes`: how many of `resource` each Node must offer."""

    kubeconfig: pulumi.Input[str]
    operator: Operator
    config: OperatorConfig
    resource: str
    nodes: Mapping[str, int]
    triggers: Sequence[pulumi.Input[Any]]


def create_allocatable_wait(name: str, args: AllocatableArgs, opts: pulumi.ResourceOptions) -> local.Command:
    """Run `busbar wait allocatable` (busbar.kube.allocatable) for all workers."""
    return create_cluster_command(
        name,
        ClusterCommandArgs(
            command=("wait", "allocatable"),
            spec=args.operator.wait_request(args.config, args.resource, args.nodes),
            kubeconfig=args.kubeconfig,
            triggers=args.triggers,
        ),
        opts,
    )
