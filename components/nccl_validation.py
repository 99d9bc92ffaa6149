"""The NCCL measurement of one pool: an MPIJob, and the collection of its launcher's log into a verdict.

Its image is pulled before, while the operators install.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi_command import local

from busbar.collect.spec import collect_spec
from busbar.hosts.inventory import Inventory
from busbar.manifests import mpijob, nccljob
from busbar.manifests.image_pull import ImagePull
from busbar.manifests.names import digest
from busbar.outputs.pool import read_result
from components.engine.custom_resource import create_custom_resource
from components.engine.local_command import ClusterCommandArgs, create_cluster_command
from components.engine.release import create_privileged_namespace

# In the state of every cluster that was measured. With another text here each would be measured again; what
# the collector prints has a version of its own, and read_result reads the former ones.
_CONSTANT_TRIGGER = "contract 2"


@dataclass(frozen=True, kw_only=True)
class NcclValidationArgs:
    """One pool of `inventory` by name. `namespace` is shared by the pools (`create_validation_namespace`)."""

    inventory: Inventory
    pool: str
    namespace: kubernetes.core.v1.Namespace
    kubeconfig: pulumi.Input[str]
    deleted_with: pulumi.Resource | None = None


class NcclValidation(pulumi.ComponentResource):
    """Makes the MPIJob, the Command that collects its log, and the ConfigMap of a topology file if set.

    The job runs again when anything in it changes (nodes, versions, image, arguments,
    `validation.run`), because its name is a digest of that; it is judged again, from the same log, when only
    the expectation changes.
    """

    result: pulumi.Output[Mapping[str, Any]]
    """The verdict in short (busbar.outputs.pool.PoolResult): pass, fail, or unknown with reasons."""
    job: str
    """The name of the MPIJob."""

    def __init__(
        self, name: str, args: NcclValidationArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:NcclValidation", name, None, opts)
        cluster = args.inventory.cluster
        topology, topology_map = self._create_topology_map(name, args)
        job = _resolve(args, topology)
        manifest = mpijob.render(job)
        self.job = manifest["metadata"]["name"]
        mpi_job = create_custom_resource(
            f"{name}-job",
            manifest,
            pulumi.ResourceOptions(
                parent=self,
                depends_on=[args.namespace, *topology_map],
                # The old job may still hold the GPUs that the new one needs.
                delete_before_replace=True,
                deleted_with=args.deleted_with or args.namespace,
            ),
        )
        spec = collect_spec(cluster, job, self.job, folder=f".busbar/{pulumi.get_stack()}/{args.pool}")
        collect = create_cluster_command(
            f"{name}-collect",
            ClusterCommandArgs(
                command=("nccl", "collect"),
                spec=spec,
                kubeconfig=args.kubeconfig,
                triggers=[digest(spec), _CONSTANT_TRIGGER],
            ),
            pulumi.ResourceOptions(parent=self, depends_on=[mpi_job]),
        )
        self.result = collect.stdout.apply(read_result)
        self.register_outputs({"result": self.result, "job": self.job})

    def _create_topology_map(
        self, name: str, args: NcclValidationArgs
    ) -> tuple[nccljob.TopologyFile | None, list[pulumi.Resource]]:
        """The topology file as the job refers to it, and the ConfigMap that carries it; nothing if none."""
        validation = args.inventory.cluster.validation
        if not validation.topology_file:
            return None, []
        path = Path(validation.topology_file)
        topology = nccljob.TopologyFile(args.pool, path.name, path.read_text(encoding="utf-8"))
        return topology, [
            kubernetes.core.v1.ConfigMap(
                f"{name}-topology",
                metadata={"name": topology.config_map, "namespace": validation.namespace},
                immutable=True,
                data={topology.name: topology.text},
                opts=pulumi.ResourceOptions(
                    parent=self,
                    depends_on=[args.namespace],
                    deleted_with=args.deleted_with or args.namespace,
                ),
            )
        ]


def create_image_pull(name: str, args: NcclValidationArgs, opts: pulumi.ResourceOptions) -> local.Command:
    """Register the Command that has the image pulled on the pool's workers (busbar.manifests.image_pull).

    Outside NcclValidation, whose children wait for the operators. Nothing depends on it, and it does not
    fail where the API refuses: the measurement pulls what is missing and reports what cannot be pulled.
    """
    spec = ImagePull.of(_resolve(args)).model_dump(mode="json")
    return create_cluster_command(
        name,
        ClusterCommandArgs(
            command=("nccl", "pull-image"),
            spec=spec,
            kubeconfig=args.kubeconfig,
            triggers=[digest(spec)],
        ),
        opts,
    )


def _resolve(args: NcclValidationArgs, topology: nccljob.TopologyFile | None = None) -> nccljob.NcclJob:
    inventory = args.inventory
    workers = [worker.name for worker in inventory.workers_of(args.pool)]
    return nccljob.resolve(inventory.cluster, args.pool, workers, topology=topology)


def create_validation_namespace(
    inventory: Inventory, opts: pulumi.ResourceOptions
) -> kubernetes.core.v1.Namespace:
    """The namespace of all measurements: their workers lock memory, which only a privileged one allows."""
    name = inventory.cluster.validation.namespace
    return create_privileged_namespace("validation-namespace", name, opts)
