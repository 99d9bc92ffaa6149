"""Checks across hosts, pools and logins. Each yields findings."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping

from busbar.config.errors import Finding, did_you_mean
from busbar.config.hosts import LABELS
from busbar.config.partial import PartialCluster, PartialConfig, PartialHost
from busbar.text import counted

# With fewer servers no other server could take over a shared address.
MIN_SHARING = 3


def duplicates(config: PartialCluster) -> Iterator[Finding]:
    """Check that names and addresses are unique."""
    names: dict[str, PartialHost] = {}
    addresses: dict[str, PartialHost] = {}
    for host in config.hosts:
        if host.name and (named := names.setdefault(host.name, host)) is not host:
            yield Finding(
                (*host.path, "name"), f"is also the name of {named.where}", "rename one", repr(host.name)
            )
        if host.address and (first := addresses.setdefault(host.address, host)) is not host:
            if {host.group, first.group} == {"load_balancers", "servers"}:
                yield Finding(
                    (*host.path, "address"),
                    f"is also the address of {first.where}: HAProxy cannot listen on port 6443 of "
                    "a host that runs a K3s server",
                    "use another host for the load balancer",
                    repr(host.address),
                )
            else:
                text = f"is also the address of {first.where}"
                yield Finding((*host.path, "address"), text, "list each machine once", repr(host.address))


def quorum(config: PartialConfig) -> Iterator[Finding]:
    """Check that the number of servers is odd."""
    count = len(config.group("servers"))
    if count and count % 2 == 0:
        yield Finding(
            ("hosts", "servers"),
            f"got {count}, expected an odd number: etcd with {count} members survives no more "
            f"failures than with {count - 1}",
            "remove one or add one",
        )


def api_endpoint(config: PartialConfig) -> Iterator[Finding]:
    """Check that there is one way to the API: load balancers, an address of the servers, or a site's own."""
    balanced = bool(config.group("load_balancers"))
    if not (balanced or config.has_virtual_ip or config.has_api_endpoint):
        yield Finding(
            ("hosts", "load_balancers"),
            "missing: the Kubernetes API needs an address",
            "list one or two hosts, or give hosts.virtual_ip for the servers, or `api_endpoint: "
            "{address: ADDRESS}` of your own",
        )
    if config.has_api_endpoint:
        for setting, given in (("load_balancers", balanced), ("virtual_ip", config.has_virtual_ip)):
            if given:
                yield Finding(
                    ("api_endpoint",), f"given together with hosts.{setting}", "remove one of the two"
                )


def virtual_ip(config: PartialConfig) -> Iterator[Finding]:
    """Check that a shared address has two load balancers, or at least three servers and no load balancer."""
    count, servers = len(config.group("load_balancers")), len(config.group("servers"))
    if count == 2 and not config.has_virtual_ip:
        text = "missing: two load balancers share an address"
        yield Finding(("hosts", "virtual_ip"), text, "add {address, interface}")
    if count == 1 and config.has_virtual_ip:
        text = "given with one load balancer"
        yield Finding(("hosts", "virtual_ip"), text, "remove it, or add a second load balancer")
    if count == 0 and config.has_virtual_ip and not config.has_api_endpoint and servers < MIN_SHARING:
        text = f"got {counted(servers, 'server')} and no load balancer, expected at least {MIN_SHARING}"
        fix = "give the address of the server as `api_endpoint: {address: ADDRESS}` instead"
        yield Finding(("hosts", "virtual_ip"), text, fix)
    shared = _ip(config.virtual_ip)
    taken = next((host for host in config.hosts if host.address == config.virtual_ip), None)
    if config.virtual_ip and taken:
        text = f"is the address of {taken.where}"
        fix = "use a free address of the same network"
        yield Finding(("hosts", "virtual_ip", "address"), text, fix, repr(config.virtual_ip))
    if count == 1 or shared is None:
        return
    for host in config.group("load_balancers") or config.group("servers"):
        address = _ip(host.address)
        if address is None or address.version != shared.version:
            yield Finding(
                (*host.path, "address"),
                f"{host.address!r}: keepalived takes only IPv{shared.version} addresses together "
                f"with hosts.virtual_ip.address '{shared}', and no names",
                "give the IP address",
            )


def loopback_warnings(config: PartialConfig) -> Iterator[Finding]:
    """Warn of hosts with a loopback address, which no other host reaches."""
    for host in config.hosts:
        address = _ip(host.address)
        if host.address == "localhost" or (address and (address.is_loopback or address.is_link_local)):
            yield Finding(
                (*host.path, "address"),
                "is not one that other hosts reach",
                "give its own",
                f"'{host.address}'",
            )


def _ip(text: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text or "")
    except ValueError:
        return None


def pools(config: PartialCluster) -> Iterator[Finding]:
    """Check that each worker is in an existing pool, and that each pool has a worker."""
    names = list(config.pools)
    used: set[str] = set()
    for worker in config.workers:
        if worker.pool is None:
            if len(names) > 1:
                yield Finding(
                    (*worker.path, "pool"), f"missing: there is more than one pool: {', '.join(names)}"
                )
            used.update(names if len(names) == 1 else ())
        elif worker.pool in config.pools:
            used.add(worker.pool)
        elif names:
            hint = did_you_mean(worker.pool, names) or f"; expected one of: {', '.join(names)}"
            yield Finding((*worker.path, "pool"), f"is not in pools{hint}", found=repr(worker.pool))
    for name in names:
        if name not in used and config.workers:
            yield Finding(
                ("pools", name), "has no worker", f"remove it, or set `pool: {name}` on its workers"
            )
        workers = [each for each in config.workers if (each.pool or config.only_pool) == name]
        if workers and config.validation.enabled and all(each.quarantine for each in workers):
            text = f"all workers of pool {name} are in quarantine, so nothing is left to measure"
            fix = "end one quarantine, or set validation.enabled: false"
            yield Finding((*workers[0].path, "quarantine"), text, fix)


def topology(config: PartialCluster) -> Iterator[Finding]:
    """Check that the workers of a pool have the same levels, and that no pool sets the labels of levels."""
    for pool, fields in config.pools.items():
        workers = [each for each in config.workers if (each.pool or config.only_pool) == pool]
        for level, label in LABELS.items():
            having = [worker for worker in workers if level in worker.places]
            if not having:
                continue
            for worker in workers:
                if level not in worker.places:
                    yield Finding(
                        (*worker.path, "topology", level),
                        f"missing: {len(having)} of {len(workers)} workers of pool {pool} have "
                        "it, and schedulers pass over a Node without it",
                        "set it",
                    )
            labels = fields.get("labels")
            if isinstance(labels, Mapping) and label in labels:
                text = f"is the label of {having[0].where}.topology.{level}"
                yield Finding(("pools", pool, "labels"), text, "remove it here", repr(label))


def nfs_server(config: PartialConfig) -> Iterator[Finding]:
    """Check the section and its host, which is its own host, a load balancer or a server."""
    own = config.group("nfs_server")
    if not config.has_nfs_server:
        if own:
            text = "missing, and hosts.nfs_server is given"
            yield Finding(("nfs_server",), text, "add `nfs_server: {folder: /srv/x}`")
        return
    if config.nfs_host is None:
        if not own:
            text = "missing"
            fix = "name a load balancer or server, or add a host as hosts.nfs_server"
            yield Finding(("nfs_server", "host"), text, fix)
        return
    if own:
        yield Finding(("nfs_server", "host"), "given together with hosts.nfs_server", "remove one of the two")
        return
    named = next((host for host in config.hosts if host.name == config.nfs_host), None)
    if named is None:
        names = [host.name for host in config.hosts if host.name and host.group != "workers"]
        hint = did_you_mean(config.nfs_host, names) or f"; expected one of: {', '.join(names)}"
        yield Finding(("nfs_server", "host"), f"is not in hosts{hint}", found=repr(config.nfs_host))
    elif named.group == "workers":
        text = "is a worker: a host that mounts NFS from itself can deadlock when memory runs out"
        yield Finding(("nfs_server", "host"), text, "use another host", repr(config.nfs_host))


def login(config: PartialCluster, secrets: Collection[str], project: str) -> Iterator[Finding]:
    """Check that the SSH key has one source; `secrets`: the secret keys that the stack of PROJECT has set."""
    sources = {
        "ssh.key_file": config.ssh.key_file is not None,
        "ssh.agent": config.ssh.agent,
        f"{project}:sshPrivateKey": "sshPrivateKey" in secrets,
    }
    chosen = [name for name, given in sources.items() if given]
    if not chosen:
        yield Finding(
            ("ssh",),
            "no SSH key configured",
            "set ssh.key_file, or ssh.agent: true, or the key as a secret: `pulumi config set "
            f"--secret {project}:sshPrivateKey < KEYFILE`",
        )
    elif len(chosen) > 1:
        yield Finding(("ssh",), f"more than one key configured: {', '.join(chosen)}", "keep one")
