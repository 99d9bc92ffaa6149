"""Storage that all workers share, as far as the cluster has objects for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.components.engine.cluster import of_fixed_name
from busbar.components.engine.local_command import create_cluster_command
from busbar.manifests.names import digest
from stacks.training.package import storage as manifests
from stacks.training.package.storage import ClaimSpec, Storage, read_binding


def create_volume(
    name: str, storage: Storage, namespace: str, opts: pulumi.ResourceOptions
) -> list[pulumi.Resource]:
    """The PersistentVolume of an NFS export; nothing in other modes.

    It is made before the namespace, so that a destroy removes it after the namespace, when no pod and no
    claim uses it. Kubernetes keeps a volume in use, so an earlier deletion would wait for later ones.
    """
    if storage.mode != "nfs":
        return []
    manifest = manifests.nfs_volume(storage, namespace)
    return [
        kubernetes.core.v1.PersistentVolume(
            name, metadata=manifest["metadata"], spec=manifest["spec"], opts=of_fixed_name(opts)
        )
    ]


@dataclass(frozen=True, kw_only=True)
class SharedStorageArgs:
    """`namespace` has the claim. `workers`: the nodes that mount it."""

    storage: Storage
    namespace: kubernetes.core.v1.Namespace
    namespace_name: str
    workers: Sequence[str]
    kubeconfig: pulumi.Input[str]


class SharedStorage(pulumi.ComponentResource):
    """Makes the PersistentVolumeClaim, and waits until it is bound.

    In the modes none and path it makes nothing. Pods that mount the storage depend on `ready`.
    """

    ready: list[pulumi.Resource]
    description: pulumi.Output[Mapping[str, Any]]
    """The output `storage`: its mode; with a claim, also the claim, its namespace, volume and capacity."""

    def __init__(
        self, name: str, args: SharedStorageArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:training:SharedStorage", name, None, opts)
        self.ready = []
        self.description = pulumi.Output.from_input({"mode": args.storage.mode})
        if args.storage.has_claim:
            self._claim(name, args)
        self.register_outputs({"description": self.description})

    def _claim(self, name: str, args: SharedStorageArgs) -> None:
        storage, namespace = args.storage, args.namespace_name
        claim = manifests.claim(storage, namespace)
        kept = storage.keeps_claim
        resource = kubernetes.core.v1.PersistentVolumeClaim(
            f"{name}-claim",
            metadata=claim["metadata"],
            spec=claim["spec"],
            opts=of_fixed_name(
                pulumi.ResourceOptions(
                    parent=self,
                    depends_on=[args.namespace],
                    # Only the claim leads to the data, so a destroy leaves it for the next stack to find.
                    retain_on_delete=kept,
                    # Kubernetes keeps a claim that a pod uses; the pods are deleted with the namespace.
                    deleted_with=None if kept else args.namespace,
                )
            ),
        )
        spec = ClaimSpec(
            namespace=namespace,
            claim=claim["metadata"]["name"],
            class_name=storage.class_name,
            worker=min(args.workers),
            deadline_seconds=storage.bind_timeout_seconds,
        ).model_dump(mode="json")
        bound = create_cluster_command(
            f"{name}-bind",
            "training bind-claim",
            spec,
            args.kubeconfig,
            pulumi.ResourceOptions(parent=self, depends_on=[resource]),
            # A claim that was made again is not bound yet, even under the same name.
            triggers=[digest(spec), resource.metadata.uid],
        )
        self.ready = [bound]
        self.description = bound.stdout.apply(lambda text: read_binding(text, storage.mode, namespace))
