"""The NCCL measurement of some nodes: an MPIJob, and the collection of its launcher's log into a verdict.

The image can be pulled before, while the operators install.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi_command import local

from busbar.collect.busy import WhenBusy
from busbar.collect.spec import collect_spec, settings_of
from busbar.components.engine.cluster_objects import create_custom_resource, of_fixed_name
from busbar.components.engine.local_command import create_cluster_command, create_first_folder, digest_in
from busbar.config import section
from busbar.config.hardware import Hardware
from busbar.config.validation import Validation
from busbar.hosts.inventory import Inventory
from busbar.manifests import mpijob, nccljob
from busbar.manifests.image_pull import ImagePull
from busbar.manifests.names import digest
from busbar.manifests.scheduling import read_taints
from busbar.names import VALIDATION_NAMESPACE
from busbar.outputs.pool import current_result


@dataclass(frozen=True, kw_only=True)
class NcclValidationArgs:
    """The Nodes to measure by name, and the hardware of each.

    `pool`: a name for these Nodes. `taints`: of them, each with key, value and effect. `hca_resources`: the
    extended resources of a worker pod, by default those of the profile, else one nvidia.com/hostdev per
    rail. `validation`: settings as in `validation` of `busbar:cluster`. The namespace busbar-validation must
    exist and admit privileged pods. `versions`: a change measures again. `quarantined`: names of further
    Nodes of the pool, in quarantine; None if Nodes come and go in another way.
    """

    kubeconfig: pulumi.Input[str]
    pool: str
    nodes: Sequence[str]
    gpus: int
    rails: int
    rate_gbps: float
    gpu_model: str | None = None
    taints: Sequence[Mapping[str, str]] = ()
    hca_resources: Mapping[str, int] | None = None
    validation: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    quarantined: Sequence[str] | None = None

    @classmethod
    def of(cls, inventory: Inventory, pool: str, kubeconfig: pulumi.Input[str]) -> "NcclValidationArgs":
        """The arguments for one pool of a configuration."""
        cluster, hardware = inventory.cluster, inventory.cluster.pools[pool]
        return cls(
            kubeconfig=kubeconfig,
            pool=pool,
            nodes=[worker.name for worker in inventory.usable_of(pool)],
            gpus=hardware.gpus,
            rails=hardware.rails,
            rate_gbps=hardware.rate_gbps,
            gpu_model=hardware.gpu_model,
            taints=[taint.model_dump() for taint in hardware.taints],
            hca_resources=nccljob.hca_resources(cluster, pool),
            # A field that is not set has its value from the profile.
            validation=cluster.validation_of(pool).model_dump(exclude_unset=True),
            versions=nccljob.versions_of(cluster),
            quarantined=inventory.unusable_of(pool),
        )


class NcclValidation(pulumi.ComponentResource):
    """Makes the MPIJob, the Command that collects its log, and the ConfigMap of a topology file if set.

    The job runs again when something else is asked for (nodes, versions, image, arguments, `validation.run`),
    because its name is a digest of that. If only the expectation or the judge changes, the same log is judged
    again.
    """

    result: pulumi.Output[Mapping[str, Any]]
    """The verdict in short (busbar.outputs.pool.PoolResult): pass, fail, or unknown with reasons."""
    job: str
    """The name of the MPIJob."""

    def __init__(
        self, name: str, args: NcclValidationArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:NcclValidation", name, None, opts)
        validation = _validation(args)
        topology, topology_map = self._create_topology_map(name, args.pool, validation)
        job = _resolve(args, topology)
        manifest = mpijob.render(job)
        self.job = manifest["metadata"]["name"]
        if busy := WhenBusy.of(validation, in_quarantine=bool(args.quarantined)):
            manifest["metadata"]["annotations"] |= busy.annotations
        mpi_job = create_custom_resource(
            f"{name}-job",
            manifest,
            pulumi.ResourceOptions(
                parent=self,
                depends_on=topology_map,
                # The old job may still hold the GPUs that the new one needs.
                delete_before_replace=True,
                # A job that has ended stays as it was. One with another name comes with its own spec.
                ignore_changes=["spec"],
            ),
        )
        folder = f".busbar/{pulumi.get_stack()}/{args.pool}"
        first_folder = create_first_folder(f"{name}-folder", folder, self)
        spec = collect_spec(validation, job, self.job, folder=folder)
        collect = create_cluster_command(
            f"{name}-collect",
            "nccl collect",
            spec,
            args.kubeconfig,
            pulumi.ResourceOptions(parent=self, depends_on=[mpi_job]),
            # A new judge alone is no trigger: the command then has its previous result.
            triggers=[digest_in(first_folder, {key: spec[key] for key in spec if key != "judge"})],
            with_previous_result=True,
        )
        settings = settings_of(manifest, spec["expectation"], job.iterations, job.warmup)
        self.result = collect.stdout.apply(lambda printed: current_result(printed, settings, job.nodes))
        self.register_outputs({"result": self.result, "job": self.job})

    def _create_topology_map(
        self, name: str, pool: str, validation: Validation
    ) -> tuple[nccljob.TopologyFile | None, list[pulumi.Resource]]:
        """The topology file as the job refers to it, and the ConfigMap with its content; empty if unset."""
        if not validation.topology_file:
            return None, []
        topology = nccljob.TopologyFile.read(pool, Path(validation.topology_file))
        return topology, [
            kubernetes.core.v1.ConfigMap(
                f"{name}-topology",
                metadata={"name": topology.config_map, "namespace": VALIDATION_NAMESPACE},
                immutable=True,
                data={topology.name: topology.text},
                opts=of_fixed_name(pulumi.ResourceOptions(parent=self)),
            )
        ]


def create_image_pull(name: str, args: NcclValidationArgs, opts: pulumi.ResourceOptions) -> local.Command:
    """Register the Command that has the image pulled on the nodes (busbar.manifests.image_pull).

    It is not a child of NcclValidation, whose children wait for the operators. Nothing depends on it, and it
    does not fail if the API refuses: the measurement pulls missing images and reports failed pulls.
    """
    spec = ImagePull.of(_resolve(args)).model_dump(mode="json")
    return create_cluster_command(
        name, "nccl pull-image", spec, args.kubeconfig, opts, triggers=[digest(spec)]
    )


def _validation(args: NcclValidationArgs) -> Validation:
    return section(Validation, "validation", args.validation)


def _resolve(args: NcclValidationArgs, topology: nccljob.TopologyFile | None = None) -> nccljob.NcclJob:
    hardware = Hardware(gpus=args.gpus, rails=args.rails, rate_gbps=args.rate_gbps, gpu_model=args.gpu_model)
    return nccljob.nccl_job(
        args.pool,
        args.nodes,
        hardware,
        _validation(args),
        taints=read_taints(args.taints),
        hca_resources=args.hca_resources,
        versions=args.versions,
        topology=topology,
    )
