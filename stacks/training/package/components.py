"""The objects of stacks/training on a cluster: operators, networks, shared storage, and the training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi import ResourceOptions
from pulumi_command import local

from busbar.components.engine.cluster import create_custom_resource, create_object, uid_of
from busbar.components.engine.hosts import stack_folder
from busbar.components.frame import Installation
from stacks.training.capability import GATE
from stacks.training.package import networks, proof, storage, trainer
from stacks.training.package.collect import collect_spec
from stacks.training.package.config import Training
from stacks.training.package.target import Target


def create_runtimes(
    training: Training, targets: Mapping[str, Target], opts: ResourceOptions
) -> dict[str, pulumi.Resource]:
    """Register the ClusterTrainingRuntimes of each pool, by their names; none without Trainer."""
    made: dict[str, pulumi.Resource] = {}
    for target in targets.values() if training.trainer.enabled else ():
        for manifest in trainer.runtimes(target, training.trainer):
            name = manifest["metadata"]["name"]
            made[name] = create_custom_resource(f"trainer-{name.removeprefix('busbar-')}", manifest, opts)
    return made


def create_networks(training: Training, opts: ResourceOptions) -> list[pulumi.Resource]:
    """Register the NetworkAttachmentDefinition of each network."""
    return [
        create_custom_resource(
            f"networks-{pool}-{each.name}", networks.definition(training.namespace, pool, each), opts
        )
        for pool, of_pool in training.networks.items()
        for each in of_pool
    ]


def create_volume(training: Training, opts: ResourceOptions) -> list[pulumi.Resource]:
    """Register the PersistentVolume of an NFS export, which a destroy removes after all that uses it."""
    config = training.storage
    manifests = [storage.nfs_volume(config, training.namespace)] if config.mode == "nfs" else []
    return [create_object("storage-volume", manifest, opts) for manifest in manifests]


def create_claim(
    on: Installation[Training],
    training: Training,
    namespace: kubernetes.core.v1.Namespace,
    workers: Sequence[str],
) -> local.Command | None:
    """Register the PersistentVolumeClaim, and the step that waits until it is bound; None without one."""
    config = training.storage
    if not config.has_claim:
        return None
    manifest = storage.claim(config, training.namespace)
    mine = ResourceOptions(
        # Only the claim leads to the data, so a destroy leaves it for the next stack to find.
        retain_on_delete=config.keeps_claim,
        # Kubernetes keeps a claim that a pod uses; the pods are deleted with the namespace.
        deleted_with=None if config.keeps_claim else namespace,
    )
    claim = create_object("storage-claim", manifest, ResourceOptions.merge(on.after(namespace), mine))
    spec = storage.ClaimSpec(
        namespace=training.namespace,
        claim=manifest["metadata"]["name"],
        class_name=config.class_name,
        worker=min(workers),
        deadline_seconds=config.bind_timeout_seconds,
    )
    # A claim that was made again is not bound yet, even under the same name.
    return on.step("storage-bind", "bind-claim", spec, ResourceOptions(depends_on=[claim]), uid_of(claim))


def create_proof(
    on: Installation[Training],
    training: Training,
    target: Target,
    program: Path,
    namespace: kubernetes.core.v1.Namespace,
    ready: Sequence[pulumi.Resource],
    opts: ResourceOptions,
) -> local.Command:
    """Register the ConfigMap of the program, the Service of its ranks, the Job, and the step that judges it.

    The job runs again when its request changes, because its name is a digest of that. Job and ConfigMap of a
    name never change. `ready`: what must exist before a pod can mount the shared storage.
    """
    name = f"training-{target.pool}"
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(program.glob("*.py"))}
    manifests = proof.render(target, training, files)
    # A namespace that stays because of its claim deletes nothing.
    deleted_with = None if training.storage.keeps_claim else namespace
    inside = ResourceOptions(depends_on=[namespace], deleted_with=deleted_with)
    opts = ResourceOptions.merge(opts, inside)
    of_program = ResourceOptions.merge(opts, ResourceOptions(ignore_changes=["data"]))
    config_map = create_object(f"{name}-program", manifests.config_map, of_program)
    service = create_object(f"{name}-service", manifests.service, opts)
    # The old job may still hold the GPUs that the new one needs, so it is deleted first.
    of_job = ResourceOptions(depends_on=[config_map, service, *ready], ignore_changes=["spec"])
    job = create_object(f"{name}-job", manifests.job, ResourceOptions.merge(opts, of_job))
    spec = collect_spec(target, training, manifests.name, folder=f"{stack_folder()}/{target.pool}")
    # A job that was made again has trained again. Another contract makes another output.
    triggers = uid_of(job), f"contract {GATE.contract}"
    return on.step(f"{name}-collect", "collect", spec, ResourceOptions(depends_on=[job]), *triggers)
