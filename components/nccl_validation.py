"""The NCCL measurement of some nodes: an MPIJob, and the collection of its log into a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pulumi

from busbar.collect.busy import WhenBusy
from busbar.collect.spec import collect_spec, settings_of
from busbar.components.engine.cluster import (
    create_custom_resource,
    create_object,
    create_privileged_namespace,
    known_or_none,
    uid_of,
)
from busbar.components.engine.helm import Installed
from busbar.components.engine.hosts import stack_folder
from busbar.components.engine.local_command import create_cluster_command, digest_in_first_folder
from busbar.config.cluster import Validation
from busbar.hosts.inventory import Inventory
from busbar.manifests import mpijob, nccljob
from busbar.manifests.image_pull import ImagePull
from busbar.manifests.names import digest
from busbar.manifests.nccljob import NcclJob
from busbar.names import VALIDATION_NAMESPACE
from busbar.outputs.contract import current_result, machines_of


class NcclValidation(pulumi.ComponentResource):
    """Makes the MPIJob, the Command that collects its log, and the ConfigMap of a topology file if set.

    The job runs again when something else is asked for (nodes, versions, image, arguments, `validation.run`),
    because its name is a digest of that, and with other `machines`. Else the same log is judged again.

    `job`: as busbar.manifests.nccljob.nccl_job makes it of `validation`. Its namespace must exist and admit
    privileged pods. `in_quarantine`: whether further Nodes of the pool are in quarantine. `machines`: Node ->
    the identity of its machine, which another machine under the same name does not have.
    """

    result: pulumi.Output[Mapping[str, Any]]
    """The verdict in short (busbar.outputs.contract.PoolResult): pass, fail, or unknown with reasons."""
    job: str
    """The name of the MPIJob."""

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        kubeconfig: pulumi.Input[str],
        job: NcclJob,
        validation: Validation,
        in_quarantine: bool = False,
        machines: pulumi.Input[Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__("busbar:index:NcclValidation", name, None, opts)
        manifest = mpijob.render(job)
        self.job = manifest["metadata"]["name"]
        if busy := WhenBusy.of(validation, in_quarantine=in_quarantine):
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
                replacement_trigger=known_or_none(pulumi.Output.from_input(machines)),
            ),
        )
        spec = collect_spec(validation, job, self.job, folder=f"{stack_folder()}/{job.pool}")
        # A new judge alone is no trigger: the command then has its previous result.
        asked = {key: value for key, value in spec.items() if key != "judge"}
        collect = create_cluster_command(
            f"{name}-collect",
            "nccl collect",
            spec,
            kubeconfig,
            pulumi.ResourceOptions(parent=self, depends_on=[mpi_job]),
            # A job that was made again, such as in a new cluster, has measured again.
            triggers=[digest_in_first_folder(f"{name}-folder", asked, self), uid_of(mpi_job)],
            with_previous_result=True,
        )
        settings = settings_of(manifest, spec["expectation"], job.iterations, job.warmup)
        self.result = collect.stdout.apply(lambda printed: current_result(printed, settings, job.nodes))
        self.register_outputs({"result": self.result, "job": self.job})


class FabricValidation(pulumi.ComponentResource):
    """Makes the namespace of the measurements, an NcclValidation per pool, and pulls their image before.

    It makes nothing if `validation.enabled` is false. `facts`: host -> what preflight found. `workers`:
    pool -> what its image pull waits for. `after`: what the measurements wait for.
    """

    results: Mapping[str, pulumi.Output[Any]]
    """NcclValidation.result by pool. `measurements` has these components."""
    installed: Sequence[Installed] = ()
    """The namespace, for the check at the end of an update."""

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        inventory: Inventory,
        kubeconfig: pulumi.Input[str],
        facts: pulumi.Output[Mapping[str, dict[str, Any]]],
        workers: Mapping[str, pulumi.Resource],
        after: Sequence[pulumi.Resource],
    ) -> None:
        super().__init__("busbar:index:FabricValidation", name, None, opts)
        cluster, found = inventory.cluster, dict[str, NcclValidation]()
        pools = [*cluster.pools] if cluster.validation.enabled else []
        namespaces: list[pulumi.Resource] = []
        if pools:
            # It stays where validation is switched off, with the records of all measurements.
            own = pulumi.ResourceOptions(parent=self, retain_on_delete=True)
            # The pods of the measurements lock memory, which only a privileged namespace allows.
            made = create_privileged_namespace(f"{name}-namespace", VALIDATION_NAMESPACE, kubeconfig, own)
            self.installed, namespaces = [Installed(made, VALIDATION_NAMESPACE)], [made]
        for pool in pools:
            validation = cluster.validation_of(pool)
            file = validation.topology_file
            job = nccljob.resolve(
                cluster,
                pool,
                [worker.name for worker in inventory.usable_of(pool)],
                topology=nccljob.TopologyFile.read(pool, Path(file)) if file else None,
            )
            # The image has many GB and is pulled while the operators install. Nothing waits for it, and it
            # does not fail if the API refuses: the measurement pulls missing images and reports failed pulls.
            pull = ImagePull.of(job).model_dump(mode="json")
            create_cluster_command(
                f"{name}-{pool}-image",
                "nccl pull-image",
                pull,
                kubeconfig,
                pulumi.ResourceOptions(parent=self, depends_on=[*namespaces, workers[pool]]),
                triggers=[digest(pull)],
            )
            found[pool] = NcclValidation(
                f"{name}-{pool}",
                # One after the other: pools that share switches would share their bandwidth.
                pulumi.ResourceOptions(parent=self, depends_on=[*namespaces, *after, *found.values()]),
                kubeconfig=kubeconfig,
                job=job,
                validation=validation,
                in_quarantine=bool(inventory.unusable_of(pool)),
                machines=facts.apply(partial(machines_of, job.nodes)),
            )
        self.measurements = list(found.values())
        self.results = {pool: each.result for pool, each in found.items()}
        self.register_outputs({"pools": list(found)})
