"""The exporters, busbar's series, what a Prometheus Operator reads, and node-problem-detector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from busbar.components.engine.cluster import create_object, create_privileged_namespace
from busbar.components.engine.helm import Installed
from busbar.components.engine.local_command import create_cluster_command
from busbar.manifests.names import digest
from busbar.outputs import ClusterOutputs
from stacks.watch.package import manifests, node_problems
from stacks.watch.package.check import CheckSpec
from stacks.watch.package.config import Watch
from stacks.watch.package.outputs import CONTRACT_VERSION
from stacks.watch.package.series import SeriesSpec


@dataclass(frozen=True, kw_only=True)
class MonitoringArgs:
    """`cluster`: the outputs of a cluster that has passed."""

    watch: Watch
    cluster: ClusterOutputs


class Monitoring(pulumi.ComponentResource):
    """Makes a namespace with both exporters and busbar's series, the rules, the dashboards, and the check.

    The series are written again when the cluster's outputs change. Pulumi does not own them, so `busbar watch
    refresh` may write them too.
    """

    result: pulumi.Output[str]
    """The output of `busbar watch check`."""
    namespace: pulumi.Resource
    """The namespace of all these objects; it admits privileged pods."""
    installed: Sequence[Installed] = ()
    """What this component installs, for the check at the end of an update."""

    def __init__(self, name: str, args: MonitoringArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:watch:Monitoring", name, None, opts)
        watch = args.watch
        self.namespace = namespace = create_privileged_namespace(
            f"{name}-namespace",
            watch.namespace,
            args.cluster.kubeconfig,
            pulumi.ResourceOptions(parent=self),
            configurable=True,
        )
        self.installed = [Installed(namespace, watch.namespace)]
        inside = pulumi.ResourceOptions(parent=self, depends_on=[namespace], deleted_with=namespace)
        spec = SeriesSpec.of(args.cluster, watch).model_dump(mode="json", exclude_none=True)
        written = create_cluster_command(
            f"{name}-series", "watch write", spec, args.cluster.kubeconfig, inside, triggers=[digest(spec)]
        )
        made: list[pulumi.Resource] = [written]
        # The pod that serves the series mounts their ConfigMap.
        after = pulumi.ResourceOptions(parent=self, depends_on=[written], deleted_with=namespace)
        for manifest in manifests.workloads(watch):
            made.append(create_object(_resource(name, manifest), manifest, after))
        if watch.stack.mode != "none":
            for manifest in manifests.monitoring(watch):
                made.append(create_object(_resource(name, manifest), manifest, inside))
            for manifest in manifests.dashboards(watch):
                create_object(f"{name}-{manifest['metadata']['name']}", manifest, inside)
        if watch.dcgm:
            mine = pulumi.ResourceOptions(parent=self)
            create_object(f"{name}-{manifests.DCGM_COUNTERS}", manifests.dcgm_counters(watch), mine)
        all_of_it = [*manifests.workloads(watch), *manifests.monitoring(watch)]
        check = CheckSpec.of(watch).model_dump(mode="json")
        checked = create_cluster_command(
            f"{name}-check",
            "watch check",
            check,
            args.cluster.kubeconfig,
            pulumi.ResourceOptions(parent=self, depends_on=made),
            triggers=[
                digest({**check, "run": watch.check.run, "series": spec, "of": all_of_it}),
                f"contract {CONTRACT_VERSION}",
            ],
        )
        self.result = checked.stdout.apply(lambda text: text or "")
        self.register_outputs({"result": self.result})


def _resource(name: str, manifest: dict[str, Any]) -> str:
    return f"{name}-{manifest['kind']}-{manifest['metadata']['name']}".lower()


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
        for manifest in (
            node_problems.manifests(args.watch) if args.watch.node_problem_detector.enabled else ()
        ):
            # The binding is in no namespace that would delete it.
            mine = own if manifest["kind"] == "ClusterRoleBinding" else inside
            create_object(f"{name}-{manifest['kind']}".lower(), manifest, mine)
        self.register_outputs({})
