"""The program of stacks/watch: monitors a measured fabric. It has wiring only; see package/components.py."""

from pathlib import Path

import pulumi
from pulumi import ResourceOptions

from busbar.components.engine.cluster import create_cluster_provider
from busbar.components.engine.helm import check_after_deletions
from busbar.components.engine.local_command import create_cluster_command
from busbar.components.engine.stack import (
    end_quietly_when_interrupted,
    export_all,
    fail_unless_passed,
    load_cluster,
    load_config,
    refuse_other_cluster,
)
from busbar.config import Chart
from busbar.manifests.names import digest
from busbar.manifests.operators import load
from stacks.watch.capability import GATE
from stacks.watch.package import manifests
from stacks.watch.package.components import Monitoring, NodeProblems, Release, create_grafana_password
from stacks.watch.package.config import CONFIG
from stacks.watch.package.outputs import build_outputs
from stacks.watch.package.survey import SurveySpec

HELM_VALUES = Path(__file__).resolve().parent / "helm_values"


async def main() -> None:
    watch = load_config(CONFIG)
    cluster = await load_cluster(watch.cluster)
    if cluster.refusal:
        raise pulumi.RunError(
            f"{cluster.refusal}\nFix: repair it, run `pulumi up` on {watch.cluster}, then this again."
        )
    await refuse_other_cluster(cluster.cluster_name, cluster.identifier)
    provider = create_cluster_provider(cluster.kubeconfig, cluster.identifier)
    first: list[pulumi.Resource] = []
    if watch.stack.mode != "none":
        spec = SurveySpec.of(watch.stack).model_dump(mode="json")
        first.append(
            create_cluster_command(
                "survey", "watch survey", spec, cluster.kubeconfig, ResourceOptions(), triggers=[digest(spec)]
            )
        )
    stack, repository = watch.stack, watch.stack.repository
    crds = Release(
        "prometheus-crds",
        manifests.CRDS,
        Chart(chart=stack.crds_chart, version=stack.crds_version, repository=repository),
        load(HELM_VALUES, manifests.CRDS.release),
        stack,
        cluster.kubeconfig,
        ResourceOptions(provider=provider, depends_on=first),
    )
    prometheus = Release(
        "prometheus",
        manifests.STACK,
        Chart(chart=stack.chart, version=stack.version, repository=repository),
        manifests.values(HELM_VALUES, stack),
        stack,
        cluster.kubeconfig,
        ResourceOptions(provider=provider, depends_on=[crds]),
    )
    if stack.enabled:
        create_grafana_password(ResourceOptions(provider=provider, depends_on=[prometheus]))
    monitoring = Monitoring(
        watch, cluster, ResourceOptions(provider=provider, depends_on=[*first, prometheus])
    )
    check_after_deletions(cluster.kubeconfig, [*crds.installed, *prometheus.installed, *monitoring.installed])
    NodeProblems(watch, monitoring.namespace, ResourceOptions(provider=provider))
    outputs = monitoring.result.apply(lambda printed: build_outputs(watch, cluster.cluster_name, printed))
    names = build_outputs(watch, cluster.cluster_name, None)
    export_all({name: outputs[name] for name in names})
    await fail_unless_passed(outputs, enforce=watch.check.enforce, gate=GATE.refusal)


end_quietly_when_interrupted()
pulumi.run(main)
