"""From a list of machines to a cluster with a measured fabric: only wiring, the parts are in components/."""

from pathlib import Path

import pulumi
from pulumi import ResourceOptions

from busbar.components.control_plane import K3sControlPlane, K3sControlPlaneArgs
from busbar.components.engine.cluster_objects import create_cluster_provider
from busbar.components.engine.join_tokens import JoinTokens
from busbar.components.engine.node_steps import fail_unless_ready, remove_stale_nodes, set_taints
from busbar.components.engine.program import end_quietly_when_interrupted, leave_out_debug_messages
from busbar.components.engine.stack_config import StackConfig
from busbar.components.engine.stack_outputs import Step, export_outputs, fail_unless_made, fail_unless_passed
from busbar.components.fabric_validation import FabricValidation, FabricValidationArgs
from busbar.components.gpu_operator import GpuOperator, GpuOperatorArgs
from busbar.components.load_balancer import HAProxyLoadBalancer, HAProxyLoadBalancerArgs
from busbar.components.mpi_operator import MpiOperator, MpiOperatorArgs
from busbar.components.network_operator import NetworkOperator, NetworkOperatorArgs
from busbar.components.nfs_server import NfsServer, NfsServerArgs
from busbar.components.preflight import Preflight, PreflightArgs
from busbar.components.worker_pools import WorkerPools, WorkerPoolsArgs
from busbar.hosts import k3s
from busbar.preflight.facts import rail_addresses

PROJECT = Path(__file__).resolve().parent


async def main() -> None:
    config = StackConfig.load(PROJECT)
    cluster, inventory, rotate = config.cluster, config.inventory, config.cluster.k3s.rotate

    tokens = JoinTokens("control-plane", servers=rotate.server_token, agents=rotate.agent_token)
    preflight = Preflight("preflight", PreflightArgs.of(config, tokens.install_id))
    checked = ResourceOptions(depends_on=[preflight])
    k3s_args = K3sControlPlaneArgs.of(config, preflight, tokens)
    control_plane = K3sControlPlane("control-plane", k3s_args, checked)
    load_balancer = HAProxyLoadBalancer(
        "load-balancer",
        HAProxyLoadBalancerArgs.of(config, ca_pem=control_plane.ca_pem, install_id=control_plane.install_id),
        checked,  # Its packages are installed while server 1 is, its configuration needs the CA.
    )
    nfs_server = NfsServer("nfs-server", NfsServerArgs.of(config, control_plane.install_id), checked)
    # Without its first server the cluster is gone: nothing on it is then uninstalled.
    kubeconfig, first_server = control_plane.kubeconfig, control_plane.foundation
    worker_taints = k3s.worker_taints(inventory)
    beside_workers = ResourceOptions(parent=control_plane, depends_on=[control_plane.prepared, load_balancer])
    taints = set_taints("control-plane-taints", worker_taints, kubeconfig, beside_workers)
    before_pools = control_plane.ahead_of_workers.apply(
        lambda ahead: [*ahead, load_balancer, *nfs_server.removals]
    )
    pools_args = WorkerPoolsArgs.of(config, preflight, control_plane)
    pools = WorkerPools("pools", pools_args, ResourceOptions(depends_on=before_pools))

    before_charts = control_plane.ahead_of_charts.apply(lambda ahead: [*ahead, load_balancer])
    provider = create_cluster_provider(
        kubeconfig,
        f"{pulumi.get_project()}-{pulumi.get_stack()}",
        ResourceOptions(depends_on=before_charts, deleted_with=first_server),
    )
    on_cluster = ResourceOptions(provider=provider, deleted_with=first_server, depends_on=[pools])
    gpu_operator = GpuOperator("gpu-operator", GpuOperatorArgs.of(inventory, kubeconfig), on_cluster)
    network_operator = NetworkOperator(
        "network-operator",
        NetworkOperatorArgs.of(inventory, kubeconfig, preflight.hosts.apply(rail_addresses)),
        # The GPU Operator brings node-feature-discovery, whose CRD the network chart's rules need. GPUs
        # need minutes to appear, and are not waited for.
        ResourceOptions.merge(on_cluster, ResourceOptions(depends_on=gpu_operator.releases)),
    )
    mpi_operator = MpiOperator("mpi-operator", MpiOperatorArgs.of(inventory, kubeconfig), on_cluster)

    fabric = FabricValidation(
        "fabric",
        FabricValidationArgs.of(inventory, kubeconfig),
        ResourceOptions(provider=provider, deleted_with=first_server),
        workers=pools.by_name,
        after=[*control_plane.steps, taints, gpu_operator, network_operator, mpi_operator],
    )

    steps: list[Step] = [*control_plane.steps, taints, *load_balancer.nodes, *nfs_server.nodes, *pools.nodes]
    outputs = export_outputs(
        cluster,
        kubeconfig=kubeconfig,
        facts=preflight.hosts,
        results=fabric.results,
        versions={
            "k3s": control_plane.k3s_version,
            "gpu_operator": gpu_operator.version,
            "network_operator": network_operator.version,
            "mpi_operator": mpi_operator.version,
        },
        steps=steps,
    )
    await fail_unless_passed(outputs, enforce=cluster.validation.is_gate)
    await fail_unless_made(steps)
    # Last, as the engine's own deletions: workers leave a cluster whose fabric has been measured.
    after = ResourceOptions(parent=control_plane, depends_on=[taints, pools, *fabric.measurements])
    stale = remove_stale_nodes("control-plane-stale-nodes", worker_taints, kubeconfig, after)
    await fail_unless_made([stale])
    await fail_unless_ready(worker_taints, kubeconfig)


end_quietly_when_interrupted()
leave_out_debug_messages()
pulumi.run(main)
