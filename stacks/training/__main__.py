"""The program of stacks/training: trains on a measured fabric. Wiring only; see package/components.py."""

from pathlib import Path

import pulumi
from pulumi import ResourceOptions

from busbar.components.engine.cluster import create_cluster_provider, create_privileged_namespace
from busbar.components.engine.helm import Installed, check_after_deletions
from busbar.components.engine.local_command import from_project
from busbar.components.engine.stack import (
    end_quietly_when_interrupted,
    export_all,
    fail_unless_passed,
    load_cluster,
    load_config,
    refuse_other_cluster,
)
from busbar.config import Chart
from stacks.training.capability import GATE
from stacks.training.package import config, target
from stacks.training.package.components import (
    InstalledOperator,
    SharedStorage,
    TrainingProof,
    create_networks,
    create_runtimes,
    create_volume,
)
from stacks.training.package.networks import MULTUS
from stacks.training.package.outputs import NAMES, build_outputs
from stacks.training.package.trainer import TRAINER, TRAINING_OPERATOR, TRAINING_OPERATOR_CHART

PROJECT = Path(__file__).resolve().parent
HELM_VALUES = PROJECT / "helm_values"


async def main() -> None:
    training = load_config(config.CONFIG)
    cluster = await load_cluster(training.cluster)
    try:
        training = target.with_cluster_export(cluster, training)
        targets = target.targets(cluster, training)
    except target.Refused as refused:
        raise pulumi.RunError(str(refused)) from None
    await refuse_other_cluster(cluster.cluster_name, cluster.identifier)
    for warning in target.warnings(targets, training):
        pulumi.warn(warning)

    kubeconfig = cluster.kubeconfig
    provider = create_cluster_provider(kubeconfig, cluster.identifier)
    opts = ResourceOptions(provider=provider)
    trainer = InstalledOperator(
        "trainer",
        TRAINER,
        training.trainer,
        TRAINER.values(HELM_VALUES, training.trainer),
        kubeconfig,
        opts,
        wanted=training.trainer.enabled,
        timeout_seconds=training.trainer.timeout_seconds,
    )
    runtimes = create_runtimes(training, targets, ResourceOptions(provider=provider, depends_on=[trainer]))
    multus = InstalledOperator(
        "multus",
        MULTUS,
        training.multus,
        MULTUS.values(HELM_VALUES, training.multus),
        kubeconfig,
        opts,
        wanted=training.multus.enabled and any(training.networks.values()),
        timeout_seconds=training.multus.timeout_seconds,
    )
    of_operator = training.training_operator
    training_operator = InstalledOperator(
        "training-operator",
        TRAINING_OPERATOR,
        Chart(chart=from_project(str(TRAINING_OPERATOR_CHART))),
        {"image": of_operator.image, "initContainerImage": of_operator.init_image},
        kubeconfig,
        opts,
        wanted=of_operator.enabled,
        timeout_seconds=of_operator.timeout_seconds,
        image=of_operator.image,
    )
    volumes = create_volume(training, opts)
    # Its pods lock memory for RDMA. They are deleted before Multus, which removes their interfaces. The
    # namespace stays if its claim stays.
    namespace = create_privileged_namespace(
        "namespace",
        training.namespace,
        kubeconfig,
        ResourceOptions(
            provider=provider,
            depends_on=[multus, *volumes],
            retain_on_delete=training.storage.keeps_claim,
        ),
        configurable=True,
    )
    networks = create_networks(training, ResourceOptions(provider=provider, depends_on=[multus, namespace]))
    workers = [worker for each in targets.values() for worker in each.launch.workers]
    storage = SharedStorage(training, namespace, workers, kubeconfig, opts)

    proofs: dict[str, TrainingProof] = {}
    for pool, each in targets.items() if training.proof.enabled else ():
        # One pool at a time: together they would share switches, and so the bandwidth.
        after = ResourceOptions(provider=provider, depends_on=[*networks, *proofs.values()])
        proofs[pool] = TrainingProof(
            training, each, PROJECT / "program", namespace, storage.ready, kubeconfig, after
        )

    releases = [each for made in (trainer, multus, training_operator) for each in made.installed]
    check_after_deletions(kubeconfig, [Installed(namespace, training.namespace), *releases])
    # Named, because Output.all() of nothing is an empty list.
    built = pulumi.Output.all(results={pool: proof.result for pool, proof in proofs.items()}).apply(
        lambda found: build_outputs(training, cluster.cluster_name, targets, found["results"])
    )
    installed = {
        "trainer_version": trainer.version,
        "runtimes": runtimes,
        "multus_version": multus.version,
        "training_operator_version": training_operator.version,
        "storage": storage.description,
    }
    export_all({**installed, **{name: built[name] for name in NAMES}})
    await fail_unless_passed(built, enforce=training.proof.is_gate, gate=GATE.refusal)


end_quietly_when_interrupted()
pulumi.run(main)
