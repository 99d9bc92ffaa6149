"""What the host scripts of HAProxy, NFS and the HTTP proxy are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import jinja2

from busbar.config import VirtualIp
from busbar.config.cluster import NfsServer
from busbar.hosts.inventory import API_PORT, Host, Inventory

CA_FILE = "/etc/haproxy/busbar-ca.pem"
SERVER_CA_FILE = "/var/lib/rancher/k3s/server/tls/server-ca.crt"
VRRP_PRIORITY = 150
VRRP_STEP = 50


def haproxy_config(load_balancers: Sequence[Host], servers: Sequence[Host], shared: VirtualIp | None) -> str:
    """The whole haproxy.cfg: the API of all servers, with their health check."""
    addresses = [host.address for host in (*load_balancers, *servers)]
    return _template("haproxy.cfg.j2").render(
        servers=[{"name": host.name, "address": host.address} for host in servers],
        port=API_PORT,
        # IPv6 is only set if needed, because a host without it cannot bind `:::`.
        ipv6=any(":" in address for address in (*addresses, shared.address if shared else "")),
        ca_file=CA_FILE,
    )


def keepalived_config(hosts: Sequence[Host], shared: VirtualIp | None, host: Host) -> str:
    """keepalived.conf of one of two load balancers, or of one of the servers without any; empty without a
    virtual IP."""
    if shared is None:
        return ""
    servers = host.role == "server"
    # The order of servers does not matter: the one that has the address keeps it.
    step = 1 if servers else VRRP_STEP
    return _template("keepalived.conf.j2").render(
        of="all servers" if servers else "two load balancers",
        servers=servers,
        ca_file=SERVER_CA_FILE,
        port=API_PORT,
        address=host.address,
        peers=[peer.address for peer in hosts if peer != host],
        priority=VRRP_PRIORITY - step * hosts.index(host),
        virtual_ip=shared,
    )


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("busbar.hosts"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


NFS_PORT = 2049

# A server that busbar installs has NFSv4 only, which needs one port. The default of 8 to 16 threads is for a
# handful of clients (nfs.conf(5), nfsd(8)).
CONFIG = "# Written by busbar\n[nfsd]\nvers3=n\nvers4=y\nthreads=64\n"


@dataclass(frozen=True)
class Export:
    """A folder of an NFS server, as a client mounts it: ADDRESS:FOLDER."""

    host: Host
    config: NfsServer

    @property
    def folder(self) -> str:
        """The exported folder, which has the same path below the root of NFSv4."""
        return self.config.folder


def export_of(inventory: Inventory) -> Export | None:
    """The export of the configuration, if there is one."""
    host, config = inventory.nfs_server, inventory.cluster.nfs_server
    return Export(host, config) if host and config else None


def exports(export: Export, workers: Iterable[Host]) -> str:
    """The text of exports(5): a line per worker, so that no one else can mount."""
    config = export.config
    squash = {"all": "all_squash", "root": "root_squash", "none": "no_root_squash"}[config.squash]
    lines = [f"{config.folder} {worker.address}(rw,sync,no_subtree_check,{squash})\n" for worker in workers]
    return "".join(["# Written by busbar\n", *lines])


LOOPBACK = ("localhost", "127.0.0.1", "::1")
# K3s itself adds another cluster-domain (k3s-io/docs, docs/advanced.md, Configuring an HTTP proxy).
OF_SERVICES = (".svc", ".cluster.local")


def proxy_environment(inventory: Inventory, *, of_servers: bool = False) -> dict[str, str]:
    """http_proxy, https_proxy and no_proxy, as curl and apt read them; empty without `http_proxy`.

    Servers connect to every worker, so no_proxy lists them all there. Other hosts connect only to the API and
    the servers; with the workers in their list, K3s would restart on all of them when one is added.
    """
    cluster = inventory.cluster
    if cluster.http_proxy is None:
        return {}
    hosts = inventory.hosts if of_servers else inventory.fronts
    addresses = [inventory.api_address, *(host.address for host in hosts)]
    direct = [
        *LOOPBACK,
        *cluster.http_proxy.outside_no_proxy(addresses),
        cluster.k3s.cluster_cidr,
        cluster.k3s.service_cidr,
        *OF_SERVICES,
        *cluster.http_proxy.direct,
    ]
    url = cluster.http_proxy.url
    return {"http_proxy": url, "https_proxy": url, "no_proxy": ",".join(dict.fromkeys(direct))}


def proxy_payload(environment: Mapping[str, str]) -> dict[str, str]:
    """`proxy`, the drop-in of K3s's unit, whose environment containerd inherits; empty without a proxy.

    Variables that the site sets in /etc/default/k3s override Environment= (systemd.exec(5)).
    """
    lines = [f"Environment={name.upper()}={value}\n" for name, value in sorted(environment.items())]
    return {"proxy": "".join(["# Written by busbar\n[Service]\n", *lines])} if lines else {}
