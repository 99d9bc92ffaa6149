"""The whole bring-up as one component: from a list of machines to a cluster with a measured fabric."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pulumi

from busbar import outputs
from busbar.components.api_endpoint import create_api_front
from busbar.components.control_plane import K3sControlPlane, K3sControlPlaneArgs
from busbar.components.engine.cluster_objects import create_cluster_provider
from busbar.components.engine.join_tokens import JoinTokens
from busbar.components.engine.new_parent import adopted_by
from busbar.components.engine.node_steps import fail_unless_ready, remove_stale_nodes, set_taints
from busbar.components.engine.stack_config import StackConfig, read_stack
from busbar.components.engine.stack_outputs import Step, export_all, fail_unless_made, fail_unless_passed
from busbar.components.fabric_validation import FabricValidation, FabricValidationArgs
from busbar.components.gpu_operator import GpuOperator, GpuOperatorArgs
from busbar.components.mpi_operator import MpiOperator, MpiOperatorArgs
from busbar.components.network_operator import NetworkOperator, NetworkOperatorArgs
from busbar.components.nfs_server import NfsServer, NfsServerArgs
from busbar.components.preflight import Preflight, PreflightArgs
from busbar.components.worker_pools import WorkerPools, WorkerPoolsArgs
from busbar.hosts import k3s
from busbar.preflight.facts import rail_addresses

_SECRETS = {
    "ssh_private_key": "sshPrivateKey",
    "ssh_private_key_password": "sshPrivateKeyPassword",
    "registry_credentials": "registryCredentials",
    "s3_access_key": "s3AccessKey",
    "s3_secret_key": "s3SecretKey",
}


class ClusterArgs(TypedDict):
    """The configuration of a stack, from anywhere."""

    config: Mapping[str, Any]
    """The object `busbar:cluster`: the hosts, pools, versions and the validation."""
    project: NotRequired[str]
    """Folder that relative paths in it start from; by default that of the program."""
    ssh_private_key: NotRequired[pulumi.Input[str]]
    """Secret. Private key for all hosts, if neither ssh.key_file nor ssh.agent is used."""
    ssh_private_key_password: NotRequired[pulumi.Input[str]]
    """Secret. Passphrase of the private key, if it has one."""
    registry_credentials: NotRequired[pulumi.Input[str]]
    """Secret. Logins for registries as JSON: {"HOST": {"username": .., "password": ..}}."""
    s3_access_key: NotRequired[pulumi.Input[str]]
    """Secret. Access key for the bucket of k3s.snapshots.s3."""
    s3_secret_key: NotRequired[pulumi.Input[str]]
    """Secret. Secret key for the bucket of k3s.snapshots.s3."""


class Cluster(pulumi.ComponentResource):
    """A highly available K3s cluster on machines reachable over SSH, its fabric measured with NCCL.

    One per stack: hosts, commands and names of its resources know it by the stack. The outputs are those of
    the contract (docs/outputs.md); a number that was not measured is none.
    """

    contract_version: pulumi.Output[int]
    """Version of the contract of the outputs."""
    cluster_name: pulumi.Output[str]
    """Name of the cluster."""
    cluster_id: pulumi.Output[str]
    """Identifies the cluster, whatever is renamed."""
    api_endpoint: pulumi.Output[str]
    """URL of the Kubernetes API: at the load balancer, the virtual IP or `api_endpoint`."""
    k3s_version: pulumi.Output[str | None]
    """The release as found on server 1."""
    versions: pulumi.Output[dict[str, str]]
    """Versions of what runs on K3s, as found, by component."""
    nccl_busbw_gbps: pulumi.Output[float | None]
    """Bus bandwidth of the worst pool in GB/s (10^9 bytes)."""
    nccl_expected_gbps: pulumi.Output[float | None]
    """What it should be, in GB/s."""
    nccl_fraction: pulumi.Output[float | None]
    """Their ratio."""
    nccl_passed: pulumi.Output[bool]
    """The value to gate on; false also where there is no evidence."""
    nccl_reasons: pulumi.Output[list[str]]
    """Why it did not pass; empty on a pass."""
    nfs_server: pulumi.Output[dict[str, str] | None]
    """`address` and `export` of the NFS server that workers mount, if busbar made one."""
    details: pulumi.Output[str]
    """Hosts and pools in detail: JSON (schema/details.schema.json)."""
    kubeconfig: pulumi.Output[str]
    """Secret; its server is `api_endpoint`."""

    def __init__(self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        """Raises pulumi.RunError with every finding of the configuration, before anything is registered."""
        given: Mapping[str, Any] = args
        secrets = {_SECRETS[key]: pulumi.Output.secret(given[key]) for key in _SECRETS if given.get(key)}
        config = StackConfig.of(args["config"], secrets, Path(args.get("project") or Path.cwd()))
        super().__init__("busbar:index:Cluster", name, None, opts)
        cluster, inventory, rotate = config.cluster, config.inventory, config.cluster.k3s.rotate

        tokens = JoinTokens(
            "control-plane", servers=rotate.server_token, agents=rotate.agent_token, parent=self
        )
        preflight = Preflight("preflight", PreflightArgs.of(config, tokens.install_id), adopted_by(self))
        checked = adopted_by(self, [preflight])
        k3s_args = K3sControlPlaneArgs.of(config, preflight, tokens)
        control_plane = K3sControlPlane("control-plane", k3s_args, checked)
        api_front = create_api_front(config, preflight, control_plane, self)
        nfs_server = NfsServer("nfs-server", NfsServerArgs.of(config, control_plane.install_id), checked)
        # Without its first server the cluster is gone: nothing on it is then uninstalled.
        kubeconfig, first_server = control_plane.kubeconfig, control_plane.foundation
        worker_taints = k3s.worker_taints(inventory)
        beside_workers = pulumi.ResourceOptions(
            parent=control_plane, depends_on=[control_plane.prepared, api_front]
        )
        taints = set_taints(
            "control-plane-taints",
            worker_taints,
            kubeconfig,
            beside_workers,
            quarantine=inventory.quarantine,
            cordon=inventory.cordoned,
        )
        before_pools: pulumi.Output[list[pulumi.Resource]] = control_plane.ahead_of_workers.apply(
            lambda ahead: [*ahead, api_front, *nfs_server.removals]
        )
        pools_args = WorkerPoolsArgs.of(config, preflight, control_plane)
        pools = WorkerPools("pools", pools_args, adopted_by(self, before_pools))

        before_charts: pulumi.Output[list[pulumi.Resource]] = control_plane.ahead_of_charts.apply(
            lambda ahead: [*ahead, api_front]
        )
        provider = create_cluster_provider(
            kubeconfig,
            tokens.install_id,
            adopted_by(self, before_charts, first_server),
        )
        on_cluster = adopted_by(self, [pools], first_server, provider=provider)
        gpu_operator = GpuOperator("gpu-operator", GpuOperatorArgs.of(inventory, kubeconfig), on_cluster)
        network_operator = NetworkOperator(
            "network-operator",
            NetworkOperatorArgs.of(inventory, kubeconfig, preflight.hosts.apply(rail_addresses)),
            # The GPU Operator brings node-feature-discovery, whose CRD the network chart's rules need. GPUs
            # need minutes to appear, and are not waited for.
            adopted_by(self, [pools, *gpu_operator.releases], first_server, provider=provider),
        )
        mpi_operator = MpiOperator("mpi-operator", MpiOperatorArgs.of(inventory, kubeconfig), on_cluster)

        fabric = FabricValidation(
            "fabric",
            FabricValidationArgs.of(inventory, kubeconfig),
            adopted_by(self, [], first_server, provider=provider),
            workers=pools.by_name,
            after=[*control_plane.steps, taints, gpu_operator, network_operator, mpi_operator],
        )

        self.kubeconfig = kubeconfig
        self._outputs: pulumi.Output[dict[str, Any]] = pulumi.Output.all(
            cluster_id=tokens.install_id,
            versions={
                "k3s": control_plane.k3s_version,
                "gpu_operator": gpu_operator.version,
                "network_operator": network_operator.version,
                "mpi_operator": mpi_operator.version,
            },
            facts=preflight.hosts,
            results=fabric.results,
        ).apply(lambda found: outputs.build_outputs(cluster, **found))
        for output in outputs.NAMES:
            setattr(self, output, self._outputs[output])
        self._steps: list[Step] = [
            *control_plane.steps,
            taints,
            *api_front.nodes,
            *nfs_server.nodes,
            *pools.nodes,
        ]
        self._is_gate = cluster.validation.is_gate
        self._workers = worker_taints.keys()
        self._servers = [server.name for server in inventory.servers]
        self._usable = [worker.name for worker in inventory.usable]
        # Last, as the engine's own deletions: workers leave a cluster whose fabric has been measured.
        self._at_the_end = pulumi.ResourceOptions(
            parent=control_plane, depends_on=[taints, pools, *fabric.measurements]
        )
        self.register_outputs({"cluster_name": cluster.name})

    @classmethod
    def of_stack(cls, name: str, project: Path) -> "Cluster":
        """The cluster that the configuration of the selected stack describes; `project` is the program's
        folder. Raises pulumi.RunError."""
        data, secrets = read_stack()
        args: Any = {"config": data, "project": str(project)}
        args |= {key: secrets[name] for key, name in _SECRETS.items() if name in secrets}
        return cls(name, args)

    def export(self) -> None:
        """Make its outputs those of the stack: all of them, or none if one is not known or a step failed."""
        names = (*outputs.NAMES, "kubeconfig")
        export_all({name: getattr(self, name) for name in names}, self._steps)

    async def finish(self) -> None:
        """What follows the outputs: the gate, and the Nodes of workers that are not configured any more.

        Raises pulumi.RunError where the fabric did not pass (`validation.enforce`), a step failed, a server
        does not serve, or a worker's Node is not Ready. The engine then deletes nothing.
        """
        await fail_unless_passed(self._outputs, enforce=self._is_gate)
        await fail_unless_made(self._steps)
        stale = remove_stale_nodes(
            "control-plane-stale-nodes", self._workers, self.kubeconfig, self._at_the_end
        )
        await fail_unless_made([stale])
        await fail_unless_ready(self._servers, self._usable, self.kubeconfig)
