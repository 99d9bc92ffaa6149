"""The objects of stacks/watch on a cluster: Prometheus, exporters, series, rules, node-problem-detector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
import pulumi_random as random
from pulumi import ResourceOptions

from busbar.components.engine.cluster import create_object, create_privileged_namespace, of_fixed_name
from busbar.components.engine.helm import Installed, create_release
from busbar.components.engine.local_command import create_cluster_command
from busbar.config import Chart
from busbar.manifests.names import digest
from busbar.manifests.operators import Operator, Values
from busbar.outputs import ClusterOutputs
from stacks.watch.package import manifests, node_problems
from stacks.watch.package.check import CheckSpec
from stacks.watch.package.config import Stack, Watch
from stacks.watch.package.outputs import CONTRACT_VERSION
from stacks.watch.package.series import SeriesSpec


class Release(pulumi.ComponentResource):
    """Makes a release of kube-prometheus-stack or of its CRDs, or nothing unless stack.mode is install.

    Helm does not wait for it: `busbar watch check` tests at the end.
    """

    installed: Sequence[Installed] = ()
    """The releases of this component, for the check at the end of an update."""

    def __init__(
        self,
        name: str,
        operator: Operator,
        chart: Chart,
        values: Values,
        stack: Stack,
        kubeconfig: pulumi.Input[str],
        opts: ResourceOptions,
    ) -> None:
        super().__init__("busbar:watch:Release", name, None, opts)
        if stack.enabled:
            timeout = stack.timeout_seconds
            made = create_release(name, operator, chart, values, kubeconfig, self, timeout_seconds=timeout)
            self.installed = made.installed
        self.register_outputs({})


def create_grafana_password(opts: ResourceOptions) -> None:
    """Register Grafana's password and its Secret, after the release that makes their namespace.

    Grafana's pod waits for the Secret.
    """
    name = "prometheus-grafana"
    password = random.RandomPassword(f"{name}-password", length=32, special=False, opts=opts)
    kubernetes.core.v1.Secret(
        f"{name}-admin",
        metadata={"name": manifests.GRAFANA_SECRET, "namespace": manifests.STACK.namespace},
        string_data={"admin-user": "admin", "admin-password": password.result},
        opts=of_fixed_name(opts),
    )


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
    """The releases of this component, for the check at the end of an update."""

    def __init__(self, watch: Watch, cluster: ClusterOutputs, opts: ResourceOptions) -> None:
        """`cluster`: the outputs of a cluster that has passed."""
        name, kubeconfig = "monitoring", cluster.kubeconfig
        super().__init__("busbar:watch:Monitoring", name, None, opts)
        mine = ResourceOptions(parent=self)
        self.namespace = namespace = create_privileged_namespace(
            f"{name}-namespace", watch.namespace, kubeconfig, mine, configurable=True
        )
        self.installed = [Installed(namespace, watch.namespace)]
        inside = ResourceOptions(parent=self, depends_on=[namespace], deleted_with=namespace)
        spec = SeriesSpec.of(cluster, watch).model_dump(mode="json", exclude_none=True)
        written = create_cluster_command(
            f"{name}-series", "watch write", spec, kubeconfig, inside, triggers=[digest(spec)]
        )
        made: list[pulumi.Resource] = [written]
        # The pod that serves the series mounts their ConfigMap.
        after = ResourceOptions(parent=self, depends_on=[written], deleted_with=namespace)
        for manifest in manifests.workloads(watch):
            made.append(create_object(_resource(name, manifest), manifest, after))
        if watch.stack.mode != "none":
            for manifest in manifests.monitoring(watch):
                made.append(create_object(_resource(name, manifest), manifest, inside))
            for manifest in manifests.dashboards(watch):
                create_object(f"{name}-{manifest['metadata']['name']}", manifest, inside)
        if watch.dcgm:
            create_object(f"{name}-{manifests.DCGM_COUNTERS}", manifests.dcgm_counters(watch), mine)
        all_of_it = [*manifests.workloads(watch), *manifests.monitoring(watch)]
        check = CheckSpec.of(watch).model_dump(mode="json")
        checked = create_cluster_command(
            f"{name}-check",
            "watch check",
            check,
            kubeconfig,
            ResourceOptions(parent=self, depends_on=made),
            triggers=[
                digest({**check, "run": watch.check.run, "series": spec, "of": all_of_it}),
                f"contract {CONTRACT_VERSION}",
            ],
        )
        self.result = checked.stdout.apply(lambda text: text or "")
        self.register_outputs({"result": self.result})


def _resource(name: str, manifest: dict[str, Any]) -> str:
    return f"{name}-{manifest['kind']}-{manifest['metadata']['name']}".lower()


class NodeProblems(pulumi.ComponentResource):
    """Makes the DaemonSet with its rules and permissions; nothing if it is not enabled.

    It sets the conditions BusbarGPU and BusbarRail of Nodes. Nothing here acts on these conditions.
    """

    def __init__(self, watch: Watch, namespace: pulumi.Resource, opts: ResourceOptions) -> None:
        """`namespace`: that of stacks/watch, which admits privileged pods."""
        super().__init__("busbar:watch:NodeProblems", "node-problems", None, opts)
        own = ResourceOptions(parent=self)
        inside = ResourceOptions(parent=self, depends_on=[namespace], deleted_with=namespace)
        for manifest in node_problems.manifests(watch) if watch.node_problem_detector.enabled else ():
            # The binding is in no namespace that would delete it.
            mine = own if manifest["kind"] == "ClusterRoleBinding" else inside
            create_object(f"node-problems-{manifest['kind']}".lower(), manifest, mine)
        self.register_outputs({})
