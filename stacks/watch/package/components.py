"""The objects of stacks/watch on a cluster: exporters, series, rules, dashboards, node-problem-detector."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
import pulumi_random as random
from pulumi import ResourceOptions

from busbar.components.engine.cluster import create_object, of_fixed_name
from busbar.components.frame import Installation
from busbar.manifests.names import digest
from stacks.watch.capability import GATE
from stacks.watch.package import manifests, node_problems
from stacks.watch.package.check import CheckSpec
from stacks.watch.package.config import Watch
from stacks.watch.package.series import SeriesSpec


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
    """The output of the step `check`."""
    namespace: pulumi.Resource
    """The namespace of all these objects; it admits privileged pods."""

    def __init__(self, on: Installation[Watch], opts: ResourceOptions) -> None:
        name, watch = "monitoring", on.config
        super().__init__("busbar:watch:Monitoring", name, None, opts)
        mine = ResourceOptions(parent=self)
        self.namespace = namespace = on.namespace(f"{name}-namespace", watch.namespace, mine)
        inside = ResourceOptions(parent=self, depends_on=[namespace], deleted_with=namespace)
        series = SeriesSpec.of(on.cluster, watch)
        written = on.step(f"{name}-series", "write", series, inside)
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
            # Pods of dcgm-exporter mount it, and none starts without it while the cluster's stack names it.
            stays = ResourceOptions(parent=self, retain_on_delete=True)
            create_object(f"{name}-{manifests.DCGM_COUNTERS}", manifests.dcgm_counters(watch), stays)
        check = CheckSpec.of(watch)
        objects = [*manifests.workloads(watch), *manifests.monitoring(watch)]
        asked = digest({"run": watch.check.run, "series": series.model_dump(mode="json"), "of": objects})
        after = ResourceOptions(parent=self, depends_on=made)
        checked = on.step(f"{name}-check", "check", check, after, asked, f"contract {GATE.contract}")
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
