"""The NCCL measurement of some nodes: an MPIJob, and the collection of its launcher's log into a verdict.

The image can be pulled before, while the operators install.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_command import local

from busbar.collect.busy import WhenBusy
from busbar.collect.spec import collect_spec, settings_of
from busbar.components.engine.cluster import create_custom_resource, create_object
from busbar.components.engine.local_command import create_cluster_command, digest_in_first_folder
from busbar.components.engine.removal import stack_folder
from busbar.config.cluster import Validation
from busbar.manifests import mpijob
from busbar.manifests.image_pull import ImagePull
from busbar.manifests.names import digest
from busbar.manifests.nccljob import NcclJob
from busbar.outputs.pool import current_result


@dataclass(frozen=True, kw_only=True)
class NcclValidationArgs:
    """The measurement, and the settings that it is judged by.

    `job`: as busbar.manifests.nccljob.nccl_job makes it of these settings. Its namespace must exist and admit
    privileged pods. `in_quarantine`: whether further Nodes of the pool are in quarantine.
    """

    kubeconfig: pulumi.Input[str]
    job: NcclJob
    validation: Validation
    in_quarantine: bool = False


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
        job, validation = args.job, args.validation
        manifest = mpijob.render(job)
        self.job = manifest["metadata"]["name"]
        if busy := WhenBusy.of(validation, in_quarantine=args.in_quarantine):
            manifest["metadata"]["annotations"] |= busy.annotations
        own, ahead = pulumi.ResourceOptions(parent=self), list[pulumi.Resource]()
        if job.topology:
            topology = job.topology.manifest
            topology["metadata"]["namespace"] = job.namespace
            ahead.append(create_object(f"{name}-topology", topology, own))
        mpi_job = create_custom_resource(
            f"{name}-job",
            manifest,
            pulumi.ResourceOptions(
                parent=self,
                depends_on=ahead,
                # A job that has ended stays as it was. One with another name comes with its own spec.
                ignore_changes=["spec"],
            ),
        )
        spec = collect_spec(validation, job, self.job, folder=f"{stack_folder()}/{job.pool}")
        # A new judge alone is no trigger: the command then has its previous result.
        asked = {key: value for key, value in spec.items() if key != "judge"}
        collect = create_cluster_command(
            f"{name}-collect",
            "nccl collect",
            spec,
            args.kubeconfig,
            pulumi.ResourceOptions(parent=self, depends_on=[mpi_job]),
            triggers=[digest_in_first_folder(f"{name}-folder", asked, self)],
            with_previous_result=True,
        )
        settings = settings_of(manifest, spec["expectation"], job.iterations, job.warmup)
        self.result = collect.stdout.apply(lambda printed: current_result(printed, settings, job.nodes))
        self.register_outputs({"result": self.result, "job": self.job})


def create_image_pull(
    name: str, job: NcclJob, kubeconfig: pulumi.Input[str], opts: pulumi.ResourceOptions
) -> local.Command:
    """Register the Command that has the image of `job` pulled on its nodes (busbar.manifests.image_pull).

    It is not a child of NcclValidation, whose children wait for the operators. Nothing depends on it, and it
    does not fail if the API refuses: the measurement pulls missing images and reports failed pulls.
    """
    spec = ImagePull.of(job).model_dump(mode="json")
    return create_cluster_command(name, "nccl pull-image", spec, kubeconfig, opts, triggers=[digest(spec)])
