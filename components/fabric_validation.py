"""The NCCL measurements of all pools, in their order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi

from busbar.components.engine.cluster import create_privileged_namespace
from busbar.components.engine.helm import Installed
from busbar.components.nccl_validation import NcclValidation, NcclValidationArgs, create_image_pull
from busbar.hosts.inventory import Inventory
from busbar.manifests import nccljob
from busbar.names import VALIDATION_NAMESPACE


@dataclass(frozen=True, kw_only=True)
class FabricValidationArgs:
    """`workers`: pool -> what its image pull waits for. `after`: what the measurements wait for."""

    inventory: Inventory
    kubeconfig: pulumi.Input[str]
    workers: Mapping[str, pulumi.Resource]
    after: Sequence[pulumi.Resource]


class FabricValidation(pulumi.ComponentResource):
    """Makes the namespace of the measurements, an NcclValidation per pool, and pulls their image before.

    It makes nothing if `validation.enabled` is false.
    """

    results: Mapping[str, pulumi.Output[Any]]
    """NcclValidation.result by pool. `measurements` has these components."""
    installed: Sequence[Installed] = ()
    """The namespace, for the check at the end of an update."""

    def __init__(
        self, name: str, args: FabricValidationArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:FabricValidation", name, None, opts)
        found: dict[str, NcclValidation] = {}
        if args.inventory.cluster.validation.enabled:
            found = self._measure(name, args)
        self.measurements = list(found.values())
        self.results = {pool: each.result for pool, each in found.items()}
        self.register_outputs({"pools": list(found)})

    def _measure(self, name: str, args: FabricValidationArgs) -> dict[str, NcclValidation]:
        def child(after: Sequence[pulumi.Resource]) -> pulumi.ResourceOptions:
            return pulumi.ResourceOptions(parent=self, depends_on=after)

        inventory, cluster = args.inventory, args.inventory.cluster
        # The pods of the measurements lock memory, which only a privileged namespace allows.
        namespace = create_privileged_namespace(
            f"{name}-namespace", VALIDATION_NAMESPACE, args.kubeconfig, child([])
        )
        self.installed = [Installed(namespace, VALIDATION_NAMESPACE)]
        found: dict[str, NcclValidation] = {}
        for pool in cluster.pools:
            validation = cluster.validation_of(pool)
            file = validation.topology_file
            job = nccljob.resolve(
                cluster,
                pool,
                [worker.name for worker in inventory.usable_of(pool)],
                topology=nccljob.TopologyFile.read(pool, Path(file)) if file else None,
            )
            # The image has many GB and is pulled while the operators install. Nothing waits for it.
            pulled_after = child([namespace, args.workers[pool]])
            create_image_pull(f"{name}-{pool}-image", job, args.kubeconfig, pulled_after)
            found[pool] = NcclValidation(
                f"{name}-{pool}",
                NcclValidationArgs(
                    kubeconfig=args.kubeconfig,
                    job=job,
                    validation=validation,
                    in_quarantine=bool(inventory.unusable_of(pool)),
                ),
                # One after the other: pools that share switches would share their bandwidth.
                child([namespace, *args.after, *found.values()]),
            )
        return found
