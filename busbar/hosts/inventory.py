"""The hosts of a cluster, their roles, and how to log in to them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from busbar.config.cluster import Bastion, Cluster, HostConfig, Ssh
from busbar.config.files import resolve
from busbar.config.findings import ConfigError
from busbar.finding import Finding
from busbar.models import StrictModel


@checked_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Host:
    """One host. `user` and `port` are the host's own, else those of `ssh`.

    `role`: lb, server, worker or nfs. `labels`: key and value of its Node's labels beside those of the pool.
    """

    name: str
    address: str
    port: int
    user: str
    host_key: str
    role: str = Field(pattern="^(lb|server|worker|nfs)$")
    pool: str | None = None
    labels: Sequence[Sequence[str]] = ()

    def data(self) -> dict[str, Any]:
        """The host as plain data, ready for JSON."""
        return dataclasses.asdict(self)


def key_digest(key: str) -> str:
    """Identifies a private key without disclosing it (a key has at least 128 bits of entropy)."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


class Login(StrictModel):
    """The key comes from `key_file`, else from `private_key` (its text), else from the ssh-agent."""

    key_file: str | None = None
    private_key: str | None = None
    private_key_password: str | None = None
    bastion: Bastion | None = None
    key_digest: str | None = None
    """Digest of the key: a host that passed preflight with another key is checked again."""

    @classmethod
    def of(
        cls,
        ssh: Ssh,
        *,
        private_key: str | None = None,
        private_key_password: str | None = None,
        project: Path | None = None,
    ) -> Login:
        """The login that the section `ssh` describes.

        `private_key` and `private_key_password` are the secrets busbar:sshPrivateKey and
        busbar:sshPrivateKeyPassword. With `project` a relative key file is resolved against that folder.
        Without it the path stays as written, for a process that runs in the project folder.
        """
        key_file = ssh.key_file
        if key_file is not None and project is not None:
            key_file = str(resolve(project, key_file))
        use_secret = key_file is None and not ssh.agent
        return cls(
            key_file=key_file,
            private_key=private_key if use_secret else None,
            private_key_password=None if ssh.agent else private_key_password,
            bastion=ssh.bastion,
        )

    @property
    def uses_agent(self) -> bool:
        """Whether the key is in the ssh-agent."""
        return self.key_file is None and self.private_key is None

    def key_text(self, project: Path) -> str | None:
        """The text of the private key; None with the ssh-agent. A relative file starts at `project`.

        Raises ConfigError if the file cannot be read.
        """
        if self.key_file is None:
            return self.private_key
        path = resolve(project, self.key_file)
        try:
            return path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not a text file"
            what = f"cannot be read: {reason} ({path})"
            raise ConfigError([Finding(("ssh", "key_file"), what, found=repr(self.key_file))]) from None


API_PORT = 6443


@dataclass(frozen=True)
class Inventory:
    """Load balancers, servers, workers, each in the order of the configuration; last a host for NFS only."""

    cluster: Cluster
    hosts: tuple[Host, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> Inventory:
        """Flatten `cluster.hosts`; a worker without a pool belongs to the only pool."""
        ssh, hosts = cluster.ssh, cluster.hosts
        found = [host_of(host, "lb", ssh) for host in hosts.load_balancers]
        found += [host_of(host, "server", ssh) for host in hosts.servers]
        for worker in hosts.workers:
            found.append(host_of(worker, "worker", ssh, cluster.pool_of(worker), worker.topology.labels()))
        found += [host_of(host, "nfs", ssh) for host in [hosts.nfs_server] if host]
        return cls(cluster, tuple(found))

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
        members = {name: [each for each in self.workers if each.pool == name] for name in self.cluster.pools}
        return {name: tuple(each) for name, each in members.items()}

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
    """The URL of the Kubernetes API at an address; one of IPv6 gets brackets."""
    return f"https://{f'[{address}]' if ':' in address else address}:{API_PORT}"


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
