"""haproxy.cfg and keepalived.conf, rendered from the templates beside this file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import jinja2

from busbar.config import VirtualIp
from busbar.hosts.inventory import API_PORT, Host

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
    """keepalived.conf of one of two load balancers, or without any of a server; empty without a shared IP."""
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
