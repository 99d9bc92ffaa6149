"""`busbar:cluster`: the whole configuration of one stack."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from busbar.config.hardware import MeasuredCluster
from busbar.config.hosts import ApiEndpoint, Hosts, Worker
from busbar.config.http_proxy import HttpProxy
from busbar.config.k3s import K3s, arguments_of
from busbar.config.kubernetes_values import DnsLabel
from busbar.config.nfs_server import NfsServer
from busbar.config.operators import GpuOperator, MpiOperator, NetworkOperator
from busbar.config.pools import CONTROL_PLANE, Pool, Taint
from busbar.config.validation import Validation


class Cluster(MeasuredCluster[Pool, Validation]):
    """One cluster: hosts, software, and the bandwidth that it must reach.

    Use `busbar.config.load`, which also runs the checks across sections (duplicate addresses, an even number
    of servers, version sets); constructing the model directly checks each value on its own only.
    """

    name: DnsLabel = Field(description="Name of the cluster.")
    hosts: Hosts = Field(description="The hosts by role.")
    http_proxy: HttpProxy | None = Field(
        default=None, description="The proxy by which the hosts reach what is outside; by default none."
    )
    api_endpoint: ApiEndpoint | None = Field(
        default=None,
        description="An endpoint of the Kubernetes API that the site has, in place of load balancers.",
    )
    k3s: K3s = Field(default=K3s(), description="The Kubernetes distribution.")
    gpu_operator: GpuOperator = Field(default=GpuOperator(), description="NVIDIA GPU Operator.")
    network_operator: NetworkOperator = Field(
        default=NetworkOperator(), description="NVIDIA Network Operator."
    )
    mpi_operator: MpiOperator = Field(default=MpiOperator(), description="Kubeflow MPI Operator.")
    nfs_server: NfsServer | None = Field(
        default=None, description="An NFS server for the workers, set up on a host; by default none."
    )
    validation: Validation = Field(default=Validation(), description="The NCCL validation and its gate.")

    @property
    def workers(self) -> Sequence[Worker]:
        return self.hosts.workers

    @property
    def server_taints(self) -> Sequence[Taint]:
        """Taints that operators must tolerate to run on a server, beyond the defaults of their charts.

        Empty if a pool has no taint, because they run on its workers. Raises ValueError for an invalid taint.
        """
        pools = self.pools.values()
        found = [Taint.parse(text) for text in arguments_of(self.k3s.server_args, "node-taint")]
        blocking = [taint for taint in found if taint.blocks]
        by_default = all(str(taint) == f"{CONTROL_PLANE}=:NoSchedule" for taint in blocking)
        if by_default or not all(any(taint.blocks for taint in pool.taints) for pool in pools):
            return ()
        return blocking
