"""The NCCL measurements of all pools, in their order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from busbar.components.engine.cluster_objects import create_privileged_namespace
from busbar.components.engine.update_end import Installed
from busbar.components.nccl_validation import NcclValidation, NcclValidationArgs, create_image_pull
from busbar.hosts.inventory import Inventory
from busbar.names import VALIDATION_NAMESPACE


@dataclass(frozen=True, kw_only=True)
class FabricValidationArgs:
    """The pools to measure; without any nothing is measured."""

    pools: Sequence[NcclValidationArgs]

    @classmethod
    def of(cls, inventory: Inventory, kubeconfig: pulumi.Input[str]) -> "FabricValidationArgs":
        """The arguments for all pools of a configuration."""
        pools = inventory.cluster.pools if inventory.cluster.validation.enabled else ()
        return cls(pools=[NcclValidationArgs.of(inventory, pool, kubeconfig) for pool in pools])


class FabricValidation(pulumi.ComponentResource):
    """Makes the namespace of the measurements, an NcclValidation per pool, and pulls their image before."""

    results: Mapping[str, pulumi.Output[Any]]
    """NcclValidation.result by pool. `measurements` has these components."""

    def __init__(
        self,
        name: str,
        args: FabricValidationArgs,
        opts: pulumi.ResourceOptions | None = None,
        *,
        workers: Mapping[str, pulumi.Resource] | None = None,
        after: Sequence[pulumi.Resource] = (),
    ) -> None:
        """`workers`: pool -> what its image pull waits for. `after`: what the measurements wait for."""
        super().__init__("busbar:index:FabricValidation", name, None, opts)

        def child(after: Sequence[pulumi.Resource]) -> pulumi.ResourceOptions:
            return pulumi.ResourceOptions(parent=self, depends_on=after)

        # The namespace, for the check at the end of an update.
        self.installed: Sequence[Installed] = ()
        found: dict[str, NcclValidation] = {}
        if args.pools:
            # The pods of the measurements lock memory, which only a privileged namespace allows.
            namespace = create_privileged_namespace(
                f"{name}-namespace", VALIDATION_NAMESPACE, args.pools[0].kubeconfig, child([])
            )
            self.installed = [Installed(namespace, VALIDATION_NAMESPACE)]
            for pool in args.pools:
                # The image has many GB and is pulled while the operators install. Nothing waits for it.
                ready = [namespace, *([workers[pool.pool]] if workers else [])]
                create_image_pull(f"{name}-{pool.pool}-image", pool, child(ready))
                # One after the other: pools that share switches would share their bandwidth.
                before = [namespace, *after, *found.values()]
                found[pool.pool] = NcclValidation(f"{name}-{pool.pool}", pool, child(before))
        self.measurements = list(found.values())
        self.results = {pool: each.result for pool, each in found.items()}
        self.register_outputs({"pools": list(found)})
