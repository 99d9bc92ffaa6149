"""All hosts of a cluster with their role, pool and login."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from busbar.config.cluster import Cluster, HostConfig, Ssh
from busbar.hosts.host import Host

API_PORT = 6443


@dataclass(frozen=True)
class Inventory:
    """The hosts in the order load balancers, servers, workers, each in the order of the configuration; last a
    host that is only the NFS server."""

    cluster: Cluster
    hosts: tuple[Host, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> Inventory:
        """Flatten `cluster.hosts`; a worker without a pool belongs to the only pool."""
        ssh = cluster.ssh
        return cls(
            cluster,
            (
                *(host_of(host, "lb", ssh) for host in cluster.hosts.load_balancers),
                *(host_of(host, "server", ssh) for host in cluster.hosts.servers),
                *(
                    host_of(host, "worker", ssh, cluster.pool_of(host), host.topology.labels())
                    for host in cluster.hosts.workers
                ),
                *(host_of(host, "nfs", ssh) for host in [cluster.hosts.nfs_server] if host),
            ),
        )

    @cached_property
    def load_balancers(self) -> tuple[Host, ...]:
        """The hosts that run HAProxy; with two, the first is the VRRP master."""
        return tuple(host for host in self.hosts if host.role == "lb")

    @cached_property
    def servers(self) -> tuple[Host, ...]:
        """The K3s servers; the first initialises etcd, the others join it."""
        return tuple(host for host in self.hosts if host.role == "server")

    @cached_property
    def workers(self) -> tuple[Host, ...]:
        """The hosts with GPUs, of all pools."""
        return tuple(host for host in self.hosts if host.role == "worker")

    @cached_property
    def fronts(self) -> tuple[Host, ...]:
        """Load balancers and servers, through which a host is removed from the cluster."""
        return (*self.load_balancers, *self.servers)

    @cached_property
    def nfs_server(self) -> Host | None:
        """The host that exports `nfs_server.folder`: its own host, or a load balancer or server."""
        if self.cluster.nfs_server is None:
            return None
        name = self.cluster.nfs_server.host
        return next(host for host in self.hosts if (host.name == name if name else host.role == "nfs"))

    @cached_property
    def _by_pool(self) -> dict[str, tuple[Host, ...]]:
        pools: dict[str, list[Host]] = {name: [] for name in self.cluster.pools}
        for worker in self.workers:
            pools[worker.pool or ""].append(worker)
        return {name: tuple(members) for name, members in pools.items()}

    def workers_of(self, pool: str) -> tuple[Host, ...]:
        """The workers of one pool. Raises KeyError for a pool that the cluster does not have."""
        return self._by_pool[pool]

    @cached_property
    def quarantine(self) -> Mapping[str, str]:
        """Worker name -> the reason why it is kept away from jobs (`hosts.workers[].quarantine`)."""
        return self.cluster.quarantine

    @property
    def cordoned(self) -> tuple[str, ...]:
        """The names of workers in quarantine whose Nodes are cordoned too: `pools.NAME.quarantine_cordon`."""
        pools = self.cluster.pools
        held = (worker for worker in self.workers if worker.name in self.quarantine)
        return tuple(worker.name for worker in held if pools[worker.pool or ""].quarantine_cordon)

    @cached_property
    def usable(self) -> tuple[Host, ...]:
        """The workers that are not in quarantine."""
        return tuple(worker for worker in self.workers if worker.name not in self.quarantine)

    def usable_of(self, pool: str) -> tuple[Host, ...]:
        """The workers of one pool that are not in quarantine. Raises KeyError as `workers_of`."""
        return tuple(worker for worker in self.workers_of(pool) if worker.name not in self.quarantine)

    def unusable_of(self, pool: str) -> tuple[str, ...]:
        """The names of the workers of one pool that are in quarantine. Raises KeyError as `workers_of`."""
        return tuple(worker.name for worker in self.workers_of(pool) if worker.name in self.quarantine)

    @property
    def api_address(self) -> str:
        """The address of the Kubernetes API: `api_endpoint`, the virtual IP, or the only load balancer."""
        if own := self.cluster.api_endpoint:
            return own.address
        shared = self.cluster.hosts.virtual_ip
        return shared.address if shared else self.load_balancers[0].address

    @property
    def api_endpoint(self) -> str:
        """The URL of the Kubernetes API: `https://<api_address>:6443`."""
        return api_url(self.api_address)


def api_url(address: str) -> str:
    """The URL of the Kubernetes API at an address."""
    return f"https://{url_host(address)}:{API_PORT}"


def url_host(address: str) -> str:
    """The address as written in a URL: an IPv6 address gets brackets."""
    try:
        return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
    except ValueError:
        return address


def host_of(
    host: HostConfig, role: str, ssh: Ssh, pool: str | None = None, labels: Mapping[str, str] | None = None
) -> Host:
    """A configured host with the user and port of its own, or else of `ssh`."""
    return Host(
        name=host.name,
        address=host.address,
        host_key=host.host_key,
        role=role,
        user=host.user or ssh.user,
        port=host.port or ssh.port,
        pool=pool,
        labels=tuple((labels or {}).items()),
    )
