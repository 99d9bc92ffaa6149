"""How hosts use the HTTP proxy of the site: an environment for downloads, and one for K3s and containerd."""

from __future__ import annotations

from collections.abc import Mapping

from busbar.hosts.inventory import Inventory

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Another cluster-domain is added by K3s itself (k3s-io/docs, docs/advanced.md, Configuring an HTTP proxy).
OF_SERVICES = (".svc", ".cluster.local")


def environment(inventory: Inventory, *, of_servers: bool = False) -> dict[str, str]:
    """http_proxy, https_proxy and no_proxy, as curl and apt read them; empty without `http_proxy`.

    Servers ask every worker. All others ask the API and the servers only: K3s would restart on all workers
    when one is added.
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
        *cluster.http_proxy.no_proxy,
    ]
    url = cluster.http_proxy.url
    return {"http_proxy": url, "https_proxy": url, "no_proxy": ",".join(dict.fromkeys(direct))}


def payload(environment: Mapping[str, str]) -> dict[str, str]:
    """`proxy`, the drop-in of K3s's unit, whose environment containerd inherits; empty without a proxy.

    What the site sets in /etc/default/k3s is stronger than Environment= (systemd.exec(5)).
    """
    lines = [f"Environment={name.upper()}={value}\n" for name, value in sorted(environment.items())]
    return {"proxy": "".join(["# Written by busbar\n[Service]\n", *lines])} if lines else {}
