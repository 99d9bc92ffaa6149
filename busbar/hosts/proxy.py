"""Proxy environment of the hosts for the site's HTTP proxy: for downloads, and for K3s with containerd."""

from __future__ import annotations

from collections.abc import Mapping

from busbar.hosts.inventory import Inventory

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# K3s itself adds another cluster-domain (k3s-io/docs, docs/advanced.md, Configuring an HTTP proxy).
OF_SERVICES = (".svc", ".cluster.local")


def environment(inventory: Inventory, *, of_servers: bool = False) -> dict[str, str]:
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
        *cluster.http_proxy.no_proxy,
    ]
    url = cluster.http_proxy.url
    return {"http_proxy": url, "https_proxy": url, "no_proxy": ",".join(dict.fromkeys(direct))}


def payload(environment: Mapping[str, str]) -> dict[str, str]:
    """`proxy`, the drop-in of K3s's unit, whose environment containerd inherits; empty without a proxy.

    Variables that the site sets in /etc/default/k3s override Environment= (systemd.exec(5)).
    """
    lines = [f"Environment={name.upper()}={value}\n" for name, value in sorted(environment.items())]
    return {"proxy": "".join(["# Written by busbar\n[Service]\n", *lines])} if lines else {}
