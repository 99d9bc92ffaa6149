"""The program of stacks/training: trains on a measured fabric. Wiring only; see package/components.py."""

from pathlib import Path
from typing import Any

import pulumi
from pulumi import ResourceOptions
from pulumi_command import local

from busbar.components.engine.local_command import from_project
from busbar.components.frame import Installation, run
from stacks.training.capability import CAPABILITY
from stacks.training.package import components, target, trainer
from stacks.training.package.config import CONFIG, Training
from stacks.training.package.networks import MULTUS, create_crd
from stacks.training.package.outputs import Outputs, build_outputs, read_summary
from stacks.training.package.storage import NamespaceSpec

PROJECT = Path(__file__).resolve().parent


def install(on: Installation[Training]) -> pulumi.Output[dict[str, Any]]:
    training = target.with_cluster_export(on.cluster, on.config)
    targets = target.targets(on.cluster, training)
    for warning in target.warnings(targets, training):
        pulumi.warn(warning)

    # All three are awaited: a webhook whose controller does not run refuses every job, and a pod that starts
    # on a node before Multus runs there only has eth0.
    of_trainer = on.chart("trainer", trainer.TRAINER, training.trainer, on.after(), await_ready=True)
    runtimes = components.create_runtimes(training, targets, on.after(of_trainer))
    wanted = training.multus.enabled and any(training.networks.values())
    chart = training.multus.model_copy(update={"enabled": wanted})
    multus = on.chart("multus", MULTUS, chart, on.after(), await_ready=True, before_change=create_crd)
    path = from_project(str(trainer.TRAINING_OPERATOR_CHART))
    training_operator = on.chart(
        "training-operator",
        trainer.TRAINING_OPERATOR,
        trainer.training_operator(training.training_operator, path),
        on.after(),
        image=training.training_operator.image,
        await_ready=True,
    )
    volumes = components.create_volume(training, on.after())
    # Its pods lock memory for RDMA. They are deleted before Multus, which removes their interfaces. The
    # namespace stays if its claim stays.
    stays = ResourceOptions(retain_on_delete=training.storage.keeps_claim)
    opts = ResourceOptions.merge(on.after(multus, *volumes), stays)
    namespace = on.namespace("namespace", training.namespace, opts)
    of_namespace = NamespaceSpec(namespace=training.namespace, stays=training.storage.keeps_claim)
    guarded = ResourceOptions(depends_on=[namespace])
    on.step_at_removal("namespace-removal", "before-deletion", of_namespace, guarded)
    for operator, installed, made in (
        (trainer.TRAINER, of_trainer, (*runtimes.values(),)),
        (trainer.TRAINING_OPERATOR, training_operator, ()),
    ):
        for release in installed.releases:
            # Jobs are asked for before any of these is deleted.
            opts = ResourceOptions(depends_on=[namespace, release, *made])
            spec = trainer.JobsSpec(jobs=trainer.JOBS[operator.release])
            on.step_at_removal(f"{operator.release}-removal", "before-removal", spec, opts)
    networks = components.create_networks(training, on.after(multus, namespace))
    workers = [worker for each in targets.values() for worker in each.launch.workers]
    bound = components.create_claim(on, training, namespace, workers)

    ready = [bound] if bound else []
    proofs: dict[str, local.Command] = {}
    for pool, each in targets.items() if training.proof.enabled else ():
        # One pool at a time: together they would share switches, and so the bandwidth.
        after = on.after(*networks, *proofs.values())
        proofs[pool] = components.create_proof(
            on, training, each, PROJECT / "program", namespace, ready, after
        )
    return pulumi.Output.all(
        results={pool: collected.stdout.apply(read_summary) for pool, collected in proofs.items()},
        trainer_version=of_trainer.version,
        runtimes=[*runtimes],
        multus_version=multus.version,
        training_operator_version=training_operator.version,
        claim=bound.stdout if bound else None,
    ).apply(lambda found: build_outputs(training, on.cluster.cluster_name, targets, **found))


run(CAPABILITY, CONFIG, __file__, install, outputs=Outputs, refusals=target.refusals)
