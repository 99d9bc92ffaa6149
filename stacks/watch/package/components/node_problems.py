"""node-problem-detector on every worker, with busbar's rules for the kernel's log."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi

from busbar.components.engine.cluster_objects import create_object
from stacks.watch.package.config import Watch
from stacks.watch.package.node_problems import manifests


@dataclass(frozen=True, kw_only=True)
class NodeProblemsArgs:
    """`namespace`: the namespace of stacks/watch, which admits privileged pods."""

    watch: Watch
    namespace: pulumi.Resource


class NodeProblems(pulumi.ComponentResource):
    """Makes the DaemonSet with its rules and permissions; nothing if it is not enabled.

    It sets the conditions BusbarGPU and BusbarRail of Nodes. Nothing here acts on these conditions.
    """

    def __init__(self, name: str, args: NodeProblemsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:watch:NodeProblems", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        inside = pulumi.ResourceOptions(parent=self, depends_on=[args.namespace], deleted_with=args.namespace)
        for manifest in manifests(args.watch) if args.watch.node_problem_detector.enabled else ():
            # The binding is in no namespace that would delete it.
            mine = own if manifest["kind"] == "ClusterRoleBinding" else inside
            create_object(f"{name}-{manifest['kind']}".lower(), manifest, mine)
        self.register_outputs({})
