"""The program of stacks/training: trains on a measured fabric. Wiring only; see package/components/."""

from pathlib import Path

import pulumi
from pulumi import ResourceOptions

from busbar.components.engine.cluster_objects import create_cluster_provider, create_privileged_namespace
from busbar.components.engine.program import end_quietly_when_interrupted
from busbar.components.engine.stack_outputs import fail_unless_passed
from busbar.components.engine.update_end import check_after_deletions
from stacks.training.capability import GATE
from stacks.training.package.components.kueue import Kueue, KueueArgs, create_local_queue
from stacks.training.package.components.networks import Multus, MultusArgs, Networks, NetworksArgs
from stacks.training.package.components.outputs import export_outputs
from stacks.training.package.components.proof import TrainingProof, TrainingProofArgs
from stacks.training.package.components.stack import TrainingStack
from stacks.training.package.components.storage import SharedStorage, SharedStorageArgs, create_volume
from stacks.training.package.components.trainer import Trainer, TrainerArgs
from stacks.training.package.components.training_operator import TrainingOperator, TrainingOperatorArgs

PROJECT = Path(__file__).resolve().parent


async def main() -> None:
    stack = await TrainingStack.load()
    provider = create_cluster_provider(stack.cluster.kubeconfig, stack.cluster.identifier)
    check_after_deletions(stack.cluster.kubeconfig)
    trainer = Trainer(
        "trainer",
        TrainerArgs(
            config=stack.training.trainer,
            targets=stack.targets,
            helm_values=PROJECT / "helm_values",
            kubeconfig=stack.cluster.kubeconfig,
        ),
        ResourceOptions(provider=provider),
    )
    multus = Multus(
        "multus",
        MultusArgs(
            training=stack.training,
            helm_values=PROJECT / "helm_values",
            kubeconfig=stack.cluster.kubeconfig,
        ),
        ResourceOptions(provider=provider),
    )
    training_operator = TrainingOperator(
        "training-operator",
        TrainingOperatorArgs(
            config=stack.training.training_operator,
            helm_values=PROJECT / "helm_values",
            kubeconfig=stack.cluster.kubeconfig,
        ),
        ResourceOptions(provider=provider),
    )
    kueue = Kueue(
        "kueue",
        KueueArgs(
            training=stack.training,
            targets=stack.targets,
            helm_values=PROJECT / "helm_values",
            kubeconfig=stack.cluster.kubeconfig,
        ),
        ResourceOptions(provider=provider),
    )
    shared = stack.training.storage
    volumes = create_volume(
        "storage-volume", shared, stack.training.namespace, ResourceOptions(provider=provider)
    )
    # Its pods lock memory for RDMA. They are deleted before Multus, which removes their interfaces. The
    # namespace stays if its claim stays.
    namespace = create_privileged_namespace(
        "namespace",
        stack.training.namespace,
        stack.cluster.kubeconfig,
        ResourceOptions(
            provider=provider,
            depends_on=[multus, *volumes, *kueue.cluster_queues.values()],
            retain_on_delete=shared.keeps_claim,
        ),
    )
    networks = Networks(
        "networks",
        NetworksArgs(training=stack.training, targets=stack.targets, namespace=namespace),
        ResourceOptions(provider=provider, depends_on=[multus]),
    )
    for pool in kueue.cluster_queues:
        create_local_queue(
            f"queue-{pool}",
            stack.targets[pool],
            stack.training.namespace,
            ResourceOptions(
                provider=provider,
                depends_on=[namespace],
                deleted_with=None if shared.keeps_claim else namespace,
            ),
        )
    storage = SharedStorage(
        "storage",
        SharedStorageArgs(
            storage=shared,
            namespace=namespace,
            namespace_name=stack.training.namespace,
            workers=[worker for target in stack.targets.values() for worker in target.launch.workers],
            kubeconfig=stack.cluster.kubeconfig,
        ),
        ResourceOptions(provider=provider),
    )

    proofs: dict[str, TrainingProof] = {}
    if stack.training.proof.enabled:
        for pool, target in stack.targets.items():
            args = TrainingProofArgs(
                training=stack.training,
                target=target,
                program=PROJECT / "program",
                namespace=namespace,
                storage=storage.ready,
                kubeconfig=stack.cluster.kubeconfig,
            )
            # One pool at a time: together they would share switches, and so the bandwidth.
            opts = ResourceOptions(provider=provider, depends_on=[networks, *proofs.values()])
            proofs[pool] = TrainingProof(f"training-{pool}", args, opts)

    outputs = export_outputs(
        stack,
        {pool: proof.result for pool, proof in proofs.items()},
        {
            "trainer_version": trainer.version,
            "runtimes": trainer.runtimes,
            "multus_version": multus.version,
            "kueue_version": kueue.version,
            "queues": list(kueue.cluster_queues),
            "training_operator_version": training_operator.version,
            "storage": storage.description,
        },
    )
    await fail_unless_passed(outputs, enforce=stack.training.proof.is_gate, gate=GATE.refusal)


end_quietly_when_interrupted()
pulumi.run(main)
