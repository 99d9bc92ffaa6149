"""The program of stacks/training: trains on a measured fabric. Wiring only; see package/components/."""

from pathlib import Path
from typing import Any

import pulumi
from pulumi import ResourceOptions

from busbar.components.engine.cluster import (
    create_cluster_provider,
    create_privileged_namespace,
)
from busbar.components.engine.helm import Installed, check_after_deletions
from busbar.components.engine.stack import end_quietly_when_interrupted, export_all, fail_unless_passed
from stacks.training.capability import GATE
from stacks.training.package.components.networks import Multus, MultusArgs, Networks, NetworksArgs
from stacks.training.package.components.proof import TrainingProof, TrainingProofArgs
from stacks.training.package.components.stack import TrainingStack
from stacks.training.package.components.storage import SharedStorage, SharedStorageArgs, create_volume
from stacks.training.package.components.trainer import Trainer, TrainerArgs
from stacks.training.package.components.training_operator import TrainingOperator, TrainingOperatorArgs
from stacks.training.package.outputs import NAMES, build_outputs

PROJECT = Path(__file__).resolve().parent


async def main() -> None:
    stack = await TrainingStack.load()
    provider = create_cluster_provider(stack.cluster.kubeconfig, stack.cluster.identifier)
    training, targets, opts = stack.training, stack.targets, ResourceOptions(provider=provider)
    common: dict[str, Any] = {
        "helm_values": PROJECT / "helm_values",
        "kubeconfig": stack.cluster.kubeconfig,
    }
    trainer = Trainer("trainer", TrainerArgs(config=training.trainer, targets=targets, **common), opts)
    multus = Multus("multus", MultusArgs(training=training, **common), opts)
    training_operator = TrainingOperator(
        "training-operator", TrainingOperatorArgs(config=training.training_operator, **common), opts
    )
    shared = training.storage
    volumes = create_volume("storage-volume", shared, training.namespace, opts)
    # Its pods lock memory for RDMA. They are deleted before Multus, which removes their interfaces. The
    # namespace stays if its claim stays.
    namespace = create_privileged_namespace(
        "namespace",
        training.namespace,
        stack.cluster.kubeconfig,
        ResourceOptions(
            provider=provider,
            depends_on=[multus, *volumes],
            retain_on_delete=shared.keeps_claim,
        ),
        configurable=True,
    )
    networks = Networks(
        "networks",
        NetworksArgs(training=training, namespace=namespace),
        ResourceOptions(provider=provider, depends_on=[multus]),
    )
    storage = SharedStorage(
        "storage",
        SharedStorageArgs(
            storage=shared,
            namespace=namespace,
            namespace_name=training.namespace,
            workers=[worker for target in targets.values() for worker in target.launch.workers],
            kubeconfig=stack.cluster.kubeconfig,
        ),
        opts,
    )

    proofs: dict[str, TrainingProof] = {}
    for pool, target in targets.items() if training.proof.enabled else ():
        args = TrainingProofArgs(
            training=training,
            target=target,
            program=PROJECT / "program",
            namespace=namespace,
            storage=storage.ready,
            kubeconfig=stack.cluster.kubeconfig,
        )
        # One pool at a time: together they would share switches, and so the bandwidth.
        after = ResourceOptions(provider=provider, depends_on=[networks, *proofs.values()])
        proofs[pool] = TrainingProof(f"training-{pool}", args, after)

    releases = (trainer, multus, training_operator)
    check_after_deletions(
        stack.cluster.kubeconfig,
        [Installed(namespace, training.namespace), *(each for made in releases for each in made.installed)],
    )
    # Named, because Output.all() of nothing is an empty list.
    built = pulumi.Output.all(results={pool: proof.result for pool, proof in proofs.items()}).apply(
        lambda found: build_outputs(training, stack.cluster.cluster_name, targets, found["results"])
    )
    installed = {
        "trainer_version": trainer.version,
        "runtimes": trainer.runtimes,
        "multus_version": multus.version,
        "training_operator_version": training_operator.version,
        "storage": storage.description,
    }
    export_all({**installed, **{name: built[name] for name in NAMES}})
    await fail_unless_passed(built, enforce=training.proof.is_gate, gate=GATE.refusal)


end_quietly_when_interrupted()
pulumi.run(main)
