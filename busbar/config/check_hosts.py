"""Checks across hosts, pools and networks, as `<path>: <what>; <what to do>`."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator

from busbar.config.draft import Draft, HostDraft
from busbar.config.errors import did_you_mean


def duplicates(draft: Draft) -> Iterator[str]:
    """A name and an address belong to one host only."""
    names: dict[str, HostDraft] = {}
    addresses: dict[str, HostDraft] = {}
    for host in draft.hosts:
        if host.name and (named := names.setdefault(host.name, host)) is not host:
            yield f"{host.path}.name: {host.name!r} is also the name of {named.path}"
        if host.address and (first := addresses.setdefault(host.address, host)) is not host:
            if {host.group, first.group} == {"load_balancers", "servers"}:
                yield (
                    f"{host.path}.address: {host.address!r} is also {first.path}: HAProxy cannot listen on "
                    "port 6443 of a host that runs a K3s server; give the load balancer a host of its own"
                )
            else:
                yield f"{host.path}.address: {host.address!r} is also the address of {first.path}"
    if draft.virtual_ip and (taken := addresses.get(draft.virtual_ip)):
        yield (
            f"hosts.virtual_ip.address: {draft.virtual_ip!r} is the address of {taken.path}; "
            "take a free address of the same network"
        )


def resource_names(draft: Draft) -> Iterator[str]:
    """No two hosts whose resources would get one name: Pulumi joins pool, host and role with `-`."""
    only_pool = next(iter(draft.pools), None) if len(draft.pools) == 1 else None
    taken: dict[str, HostDraft] = {}
    for host in draft.group("workers"):
        stem = f"{host.pool or only_pool}-{host.name}"
        for name in (stem, f"{stem}-farewell"):
            first = taken.setdefault(name, host)
            # The same name twice is told by `duplicates`.
            if first is not host and first.name != host.name:
                yield (
                    f"{host.path}.name: {host.name!r} in pool {host.pool or only_pool!r} and {first.path} "
                    "would share the name of a Pulumi resource; rename one"
                )
    for host in draft.group("servers"):
        if host.name == "kubeconfig":
            yield f"{host.path}.name: 'kubeconfig' is the name of a step of the control plane; rename it"


def quorum(draft: Draft) -> Iterator[str]:
    """An odd number of servers."""
    count = len(draft.group("servers"))
    if count and count % 2 == 0:
        yield (
            f"hosts.servers: {count} given, an odd number is needed: etcd with {count} members "
            f"survives no more losses than with {count - 1}; remove one or add one"
        )


def virtual_ip(draft: Draft) -> Iterator[str]:
    """A shared address with two load balancers, and only then."""
    count = len(draft.group("load_balancers"))
    if count == 2 and not draft.has_virtual_ip:
        yield "hosts.virtual_ip: missing: two load balancers need an address to share: {address, interface}"
    if count == 1 and draft.has_virtual_ip:
        yield "hosts.virtual_ip: given with one load balancer; remove it, or add a second load balancer"


def pools(draft: Draft) -> Iterator[str]:
    """Each worker in a pool that exists, each pool with a worker."""
    names = list(draft.pools)
    used: set[str] = set()
    for worker in draft.group("workers"):
        if worker.pool is None:
            if len(names) > 1:
                yield f"{worker.path}.pool: missing: there is more than one pool: {', '.join(names)}"
            used.update(names if len(names) == 1 else ())
        elif worker.pool in draft.pools:
            used.add(worker.pool)
        elif names:
            hint = did_you_mean(worker.pool, names) or f"; there are: {', '.join(names)}"
            yield f"{worker.path}.pool: {worker.pool!r} is not in pools{hint}"
    for name in names:
        if name not in used and draft.group("workers"):
            yield f"pools.{name}: no worker belongs to it; remove it, or set `pool: {name}` on its workers"


def networks(draft: Draft) -> Iterator[str]:
    """Pods, services and hosts in networks apart."""
    pods, services = (ipaddress.ip_network(c) for c in (draft.k3s.cluster_cidr, draft.k3s.service_cidr))
    if pods.overlaps(services):
        yield f"k3s.service_cidr: '{services}' overlaps k3s.cluster_cidr '{pods}'; choose networks apart"
    shared = [("hosts.virtual_ip.address", draft.virtual_ip)] if draft.virtual_ip else []
    for path, address in [(f"{h.path}.address", h.address) for h in draft.hosts if h.address] + shared:
        try:
            ip = ipaddress.ip_address(address or "")
        except ValueError:
            continue
        for setting, network in (("k3s.cluster_cidr", pods), ("k3s.service_cidr", services)):
            if ip in network:
                yield f"{path}: '{ip}' lies inside {setting} '{network}': pods could not reach the host"


def labels(draft: Draft) -> Iterator[str]:
    """No label that a kubelet may not give itself."""
    for name, pool in draft.pools.items():
        labels = pool.get("labels")
        for key in labels if isinstance(labels, dict) else ():
            if str(key).startswith(("node-role.kubernetes.io/", "node-restriction.kubernetes.io/")):
                yield (
                    f"pools.{name}.labels: {key!r} may not be set by a node itself: the kubelet refuses to "
                    "start; set it with kubectl afterwards"
                )


def login(draft: Draft, secrets: Collection[str]) -> Iterator[str]:
    """Exactly one way to log in; `secrets` are the secret keys that the stack has set."""
    ways = {
        "ssh.key_file": draft.ssh.key_file is not None,
        "ssh.agent": draft.ssh.agent,
        "busbar:sshPrivateKey": "sshPrivateKey" in secrets,
    }
    chosen = [name for name, given in ways.items() if given]
    if not chosen:
        yield (
            "ssh: no way to log in: give ssh.key_file, or ssh.agent: true, or the key as a secret: "
            "`pulumi config set --secret busbar:sshPrivateKey < KEYFILE`"
        )
    elif len(chosen) > 1:
        yield f"ssh: {' and '.join(chosen)} are given; choose one, so that it is plain which key is used"
