"""From a list of machines to a measured fabric: the bring-up, read from top to bottom.

What is asked for is decided in busbar.config, how it is made in components/, what a log is worth in
busbar.nccl. Here it is wired, exported and, last, judged: the outputs are kept also where the fabric
does not pass.
"""

from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes

from busbar import outputs
from components.control_plane import K3sControlPlane, K3sControlPlaneArgs
from components.gpu_operator import GpuOperator, GpuOperatorArgs
from components.load_balancer import HAProxyLoadBalancer, HAProxyLoadBalancerArgs
from components.mpi_operator import MpiOperator, MpiOperatorArgs
from components.nccl_validation import NcclValidation, NcclValidationArgs, validation_namespace
from components.network_operator import NetworkOperator, NetworkOperatorArgs
from components.preflight import Preflight, PreflightArgs
from components.site import Site
from components.worker_pool import InfiniBandWorkerPool, InfiniBandWorkerPoolArgs

PROJECT = Path(__file__).resolve().parent


async def main() -> None:
    site = Site.of_stack(PROJECT)
    cluster, inventory, login = site.cluster, site.inventory, site.login

    preflight = Preflight("preflight", PreflightArgs(inventory=inventory, login=login))
    control_plane = K3sControlPlane(
        "control-plane",
        K3sControlPlaneArgs(
            inventory=inventory,
            login=login,
            registry_credentials=site.registry_credentials,
            s3_access_key=site.s3_access_key,
            s3_secret_key=site.s3_secret_key,
            project=PROJECT,
        ),
        after(preflight),
    )
    load_balancer = HAProxyLoadBalancer(
        "load-balancer",
        HAProxyLoadBalancerArgs(inventory=inventory, login=login, ca_pem=control_plane.ca_pem),
        after(control_plane),
    )
    pools = [
        InfiniBandWorkerPool(
            f"pool-{pool}",
            InfiniBandWorkerPoolArgs(
                inventory=inventory, pool=pool, login=login, control_plane=control_plane, project=PROJECT
            ),
            after(load_balancer),
        )
        for pool in cluster.pools
    ]

    # What lives on the cluster goes with its first server: nothing is uninstalled from a leaving cluster.
    kubeconfig, cluster_itself = control_plane.kubeconfig, control_plane.nodes[0]
    provider = kubernetes.Provider(
        "cluster",
        kubeconfig=kubeconfig,
        # Constant: a new kubeconfig is then an update, not a new cluster with everything on it replaced.
        cluster_identifier=f"{pulumi.get_project()}-{pulumi.get_stack()}",
        # An update that was killed between making an object and noting it is finished by the next one.
        upsert_existing_objects=True,
        opts=after(load_balancer, deleted_with=cluster_itself),
    )
    gpu_operator = GpuOperator(
        "gpu-operator",
        GpuOperatorArgs(inventory=inventory, kubeconfig=kubeconfig, deleted_with=cluster_itself),
        after(*pools, provider=provider),
    )
    network_operator = NetworkOperator(
        "network-operator",
        NetworkOperatorArgs(inventory=inventory, kubeconfig=kubeconfig, deleted_with=cluster_itself),
        # The GPU Operator brings node-feature-discovery, whose CRD the network chart's rules need.
        after(gpu_operator, provider=provider),
    )
    mpi_operator = MpiOperator(
        "mpi-operator",
        MpiOperatorArgs(config=cluster.mpi_operator, kubeconfig=kubeconfig, deleted_with=cluster_itself),
        after(*pools, provider=provider),
    )

    validations: dict[str, NcclValidation] = {}
    if cluster.validation.enabled:
        namespace = validation_namespace(inventory, after(provider=provider, deleted_with=cluster_itself))
        operators = (gpu_operator, network_operator, mpi_operator)
        for pool in cluster.pools:
            # One pool after the other: measured at the same time they would share switches, and the number.
            validations[pool] = NcclValidation(
                f"nccl-{pool}",
                NcclValidationArgs(
                    inventory=inventory,
                    pool=pool,
                    namespace=namespace,
                    kubeconfig=kubeconfig,
                    deleted_with=cluster_itself,
                ),
                after(*operators, *validations.values(), provider=provider),
            )

    result = pulumi.Output.all(
        versions={
            "k3s": control_plane.k3s_version,
            "gpu_operator": gpu_operator.version,
            "network_operator": network_operator.version,
            "mpi_operator": mpi_operator.version,
        },
        facts=preflight.hosts,
        results={pool: validation.result for pool, validation in validations.items()},
    ).apply(lambda found: outputs.build_outputs(cluster, **found))
    for name in outputs.NAMES:
        pulumi.export(name, result.apply(lambda built, name=name: built[name]))
    pulumi.export("kubeconfig", kubeconfig)

    if not await result.is_known():
        return  # the preview of a bring-up: nothing is measured yet
    if (reason := outputs.gate(await result.future() or {}, enforce=cluster.validation.is_gate)) is None:
        return
    if pulumi.runtime.is_dry_run():
        pulumi.warn(reason)  # a preview that fails would keep `pulumi up` from measuring again
    else:
        raise pulumi.RunError(reason)


def after(
    *resources: pulumi.Resource,
    provider: pulumi.ProviderResource | None = None,
    deleted_with: pulumi.Resource | None = None,
) -> pulumi.ResourceOptions:
    """Order only: `resources` are there, and ready, before what gets these options begins."""
    return pulumi.ResourceOptions(depends_on=list(resources), provider=provider, deleted_with=deleted_with)


pulumi.run(main)
