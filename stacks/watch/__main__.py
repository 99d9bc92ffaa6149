"""The program of stacks/watch: monitors a measured fabric. It has wiring only; see package/components/."""

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
from busbar.manifests.names import digest
from stacks.watch.capability import GATE
from stacks.watch.package.components.monitoring import (
    Monitoring,
    MonitoringArgs,
    NodeProblems,
    NodeProblemsArgs,
)
from stacks.watch.package.components.prometheus import Crds, Prometheus, PrometheusArgs
from stacks.watch.package.config import CONFIG
from stacks.watch.package.outputs import build_outputs
from stacks.watch.package.sizing import of_cluster
from stacks.watch.package.survey import SurveySpec

PROJECT = Path(__file__).resolve().parent


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
    size = of_cluster(watch, cluster)
    args = PrometheusArgs(
        stack=watch.stack,
        helm_values=PROJECT / "helm_values",
        memory_gib=size.memory_gib,
        kubeconfig=cluster.kubeconfig,
    )
    crds = Crds("prometheus-crds", args, ResourceOptions(provider=provider, depends_on=first))
    prometheus = Prometheus("prometheus", args, ResourceOptions(provider=provider, depends_on=[crds]))
    monitoring = Monitoring(
        "monitoring",
        MonitoringArgs(watch=watch, cluster=cluster),
        ResourceOptions(provider=provider, depends_on=[*first, prometheus]),
    )
    check_after_deletions(cluster.kubeconfig, [*crds.installed, *prometheus.installed, *monitoring.installed])
    problems = NodeProblemsArgs(watch=watch, namespace=monitoring.namespace)
    NodeProblems("node-problems", problems, ResourceOptions(provider=provider))
    outputs = monitoring.result.apply(
        lambda printed: build_outputs(watch, cluster.cluster_name, size, printed)
    )
    names = build_outputs(watch, cluster.cluster_name, size, None)
    export_all({name: outputs[name] for name in names})
    await fail_unless_passed(outputs, enforce=watch.check.enforce, gate=GATE.refusal)


end_quietly_when_interrupted()
pulumi.run(main)
