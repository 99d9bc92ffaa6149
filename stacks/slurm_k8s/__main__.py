"""The program of stacks/slurm_k8s: Slurm on a measured cluster. Wiring only; see package/components/."""

from pathlib import Path

import pulumi
from pulumi import ResourceOptions

from busbar.components.engine.cluster import create_cluster_provider, refuse_changes
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
from stacks.slurm_k8s.capability import GATE
from stacks.slurm_k8s.package.components.slurm import (
    SlurmArgs,
    SlurmCluster,
    SlurmCrds,
    SlurmOperator,
    create_step,
)
from stacks.slurm_k8s.package.config import CONFIG
from stacks.slurm_k8s.package.outputs import NAMES, build_outputs
from stacks.slurm_k8s.package.pools import Refused, pools_of
from stacks.slurm_k8s.package.ready import ReadySpec, works
from stacks.slurm_k8s.package.survey import changed_state
from stacks.slurm_k8s.package.values import survey_spec

PROJECT = Path(__file__).resolve().parent


async def main() -> None:
    slurm = load_config(CONFIG)
    cluster = await load_cluster(slurm.cluster)
    try:
        pools = pools_of(cluster, slurm)
    except Refused as refused:
        raise pulumi.RunError(str(refused)) from None
    await refuse_other_cluster(cluster.cluster_name, cluster.identifier)
    await refuse_changes(cluster.kubeconfig, lambda api: changed_state(api, slurm.namespace, slurm.state))
    provider = create_cluster_provider(cluster.kubeconfig, cluster.identifier)
    spec = survey_spec(slurm, pools).model_dump(mode="json")
    survey = create_cluster_command(
        "survey", "slurm_k8s survey", spec, cluster.kubeconfig, ResourceOptions(), triggers=[digest(spec)]
    )
    args = SlurmArgs(slurm=slurm, cluster=cluster, pools=pools, helm_values=PROJECT / "helm_values")
    crds = SlurmCrds("slurm-crds", args, ResourceOptions(provider=provider, depends_on=[survey]))
    operator = SlurmOperator("slurm-operator", args, ResourceOptions(provider=provider, depends_on=[crds]))
    of_operator = ResourceOptions(depends_on=[operator])
    releases = [digest({"values": args.given, "version": slurm.version})]
    change = create_step("slurm-change", "before-change", args, of_operator, releases)
    gone = create_step("slurm-gone", "after-removal", args, of_operator, at_removal=True)
    after = [operator, change, gone]
    running = SlurmCluster("slurm", args, ResourceOptions(provider=provider, depends_on=after))
    wanted = ReadySpec.of(slurm, pools)
    check_after_deletions(
        cluster.kubeconfig,
        [*crds.installed, *operator.installed, *running.installed],
        (lambda api: works(api, wanted)) if slurm.probe.enforce else None,
    )
    # Named, because Output.all() of nothing is an empty list.
    found = pulumi.Output.all(printed=running.result, results=running.measured)
    outputs = found.apply(lambda known: build_outputs(slurm, cluster.cluster_name, pools, **known))
    export_all({name: outputs[name] for name in NAMES})
    await fail_unless_passed(outputs, enforce=slurm.probe.enforce, gate=GATE.refusal)


end_quietly_when_interrupted()
pulumi.run(main)
