"""node-problem-detector on every worker, with busbar's rules for the kernel's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from stacks.watch.package.config import Watch
from stacks.watch.package.node_problems import manifests


@dataclass(frozen=True, kw_only=True)
class NodeProblemsArgs:
    """`namespace`: that of stacks/watch, which admits privileged pods."""

    watch: Watch
    namespace: pulumi.Resource


class NodeProblems(pulumi.ComponentResource):
    """Makes the DaemonSet with its rules and rights; nothing where it is not enabled.

    It sets the conditions BusbarGPU and BusbarRail of Nodes. Nothing here acts on them.
    """

    def __init__(self, name: str, args: NodeProblemsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:watch:NodeProblems", name, None, opts)
        inside = pulumi.ResourceOptions(parent=self, depends_on=[args.namespace], deleted_with=args.namespace)
        for manifest in manifests(args.watch) if args.watch.node_problem_detector.enabled else ():
            _create(f"{name}-{manifest['kind']}".lower(), manifest, inside)
        self.register_outputs({})


def _create(name: str, manifest: dict[str, Any], opts: pulumi.ResourceOptions) -> None:
    metadata = manifest["metadata"]
    match manifest["kind"]:
        case "ConfigMap":
            kubernetes.core.v1.ConfigMap(name, metadata=metadata, data=manifest["data"], opts=opts)
        case "ServiceAccount":
            kubernetes.core.v1.ServiceAccount(name, metadata=metadata, opts=opts)
        case "ClusterRoleBinding":
            role, subjects = manifest["roleRef"], manifest["subjects"]
            # It is in no namespace, with which it would go.
            own = pulumi.ResourceOptions(parent=opts.parent)
            kubernetes.rbac.v1.ClusterRoleBinding(
                name, metadata=metadata, role_ref=role, subjects=subjects, opts=own
            )
        case "DaemonSet":
            kubernetes.apps.v1.DaemonSet(name, metadata=metadata, spec=manifest["spec"], opts=opts)
