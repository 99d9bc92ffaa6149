"""The training run on one pool: a Job with the program, and the collection of its log into a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.components.engine.cluster import create_object
from busbar.components.engine.local_command import create_cluster_command, digest_in_first_folder
from stacks.training.package import proof
from stacks.training.package.collect import collect_spec
from stacks.training.package.config import Training
from stacks.training.package.outputs import CONTRACT_VERSION, read_summary
from stacks.training.package.target import Target


@dataclass(frozen=True, kw_only=True)
class TrainingProofArgs:
    """One pool. `program`: the folder of the training program. `namespace` is shared by the pools.

    `storage`: the resources that must exist before a pod can mount the shared storage.
    """

    training: Training
    target: Target
    program: Path
    namespace: kubernetes.core.v1.Namespace
    storage: Sequence[pulumi.Resource]
    kubeconfig: pulumi.Input[str]


class TrainingProof(pulumi.ComponentResource):
    """Makes the ConfigMap of the program, the Service of its ranks, the Job, and the collecting Command.

    The job runs again when its request changes (workers, image, settings, `proof.run`), because its name is a
    digest of that. If only the expectation changes, the same log is judged again. Job and ConfigMap of a name
    never change: a changed program, script or manifest comes with the next run.
    """

    result: pulumi.Output[Mapping[str, Any]]
    """The verdict in short (stacks.training.package.outputs.summarize)."""
    job: str
    """The name of the Job."""

    def __init__(
        self, name: str, args: TrainingProofArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:training:TrainingProof", name, None, opts)
        manifests = proof.render(args.target, args.training, read_program(args.program))
        self.job = manifests.name
        # A namespace that stays because of its claim deletes nothing.
        deleted_with = None if args.training.storage.keeps_claim else args.namespace
        in_namespace = pulumi.ResourceOptions(
            parent=self, depends_on=[args.namespace], deleted_with=deleted_with
        )
        program = pulumi.ResourceOptions.merge(in_namespace, pulumi.ResourceOptions(ignore_changes=["data"]))
        config_map = create_object(f"{name}-program", manifests.config_map, program)
        service = create_object(f"{name}-service", manifests.service, in_namespace)
        job = kubernetes.batch.v1.Job(
            f"{name}-job",
            metadata=manifests.job["metadata"],
            spec=manifests.job["spec"],
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[config_map, service, *args.storage],
                # The old job may still hold the GPUs that the new one needs.
                delete_before_replace=True,
                ignore_changes=["spec"],
                deleted_with=deleted_with,
            ),
        )
        folder = f".busbar/{pulumi.get_stack()}/{args.target.pool}"
        spec = collect_spec(args.target, args.training, self.job, folder=folder)
        collect = create_cluster_command(
            f"{name}-collect",
            "training collect",
            spec,
            args.kubeconfig,
            pulumi.ResourceOptions(parent=self, depends_on=[job]),
            # Another contract makes another output.
            triggers=[digest_in_first_folder(f"{name}-folder", spec, self), f"contract {CONTRACT_VERSION}"],
        )
        self.result = collect.stdout.apply(read_summary)
        self.register_outputs({"result": self.result, "job": self.job})


def read_program(folder: Path) -> dict[str, str]:
    """File name -> text of every Python file in the folder."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
