"""Checks and warnings that no value can make on its own. They take a configuration of valid values.

Each yields findings. Those of a `MeasuredCluster` serve K3s and Slurm.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from busbar import versions
from busbar.config.cluster import (
    LABELS,
    AnyCluster,
    Chart,
    Cluster,
    Hardware,
    HostConfig,
    K3s,
    NcclPoolSettings,
    Ssh,
    Worker,
    arguments_of,
    parsed,
)
from busbar.config.findings import did_you_mean
from busbar.config.types import PACKAGED, ip_of, is_floating
from busbar.finding import STACK, Finding, KeyPath, path_of
from busbar.judge.nccl.expected.system import is_gpu
from busbar.text import counted, listed

# With fewer servers no other server could take over a shared address.
MIN_SHARING = 3


def of_measured_cluster(cluster: AnyCluster) -> Iterator[Finding]:
    """All checks that K3s and Slurm share."""
    for check in (duplicates, pools, topology, measurement, hardware):
        yield from check(cluster)


def of_cluster(cluster: Cluster) -> Iterator[Finding]:
    """All checks of `busbar:cluster`."""
    yield from of_measured_cluster(cluster)
    for check in (
        api_front,
        virtual_ip,
        nfs_server,
        networks,
        pod_network_size,
        k3s_keys,
        api_server_arguments,
        operator_versions,
        resource,
        node_features,
    ):
        yield from check(cluster)


def hosts_of(cluster: AnyCluster) -> list[tuple[KeyPath, HostConfig]]:
    """All hosts with their paths: first those that have a key of their own, then those in lists."""
    single: list[tuple[KeyPath, HostConfig]] = []
    in_lists: list[tuple[KeyPath, HostConfig]] = []
    for role, value in cluster.hosts:
        if isinstance(value, HostConfig):
            single.append((("hosts", role), value))
        elif isinstance(value, list):
            in_lists += ((("hosts", role, index), host) for index, host in enumerate(value))
    return [*single, *in_lists]


def _workers_of(cluster: AnyCluster) -> dict[str, list[tuple[KeyPath, Worker]]]:
    """Pool -> its workers with their paths."""
    found: dict[str, list[tuple[KeyPath, Worker]]] = {name: [] for name in cluster.pools}
    for path, host in hosts_of(cluster):
        if isinstance(host, Worker) and (pool := cluster.pool_of(host)) in found:
            found[pool].append((path, host))
    return found


def duplicates(cluster: AnyCluster) -> Iterator[Finding]:
    """Names and addresses are unique."""
    first: dict[tuple[str, str], KeyPath] = {}
    for path, host in hosts_of(cluster):
        for key, value, fix in (
            ("name", host.name, "rename one"),
            ("address", host.address, "list each machine once"),
        ):
            other = first.setdefault((key, value), path)
            if other == path:
                continue
            what = f"is also the {key} of {path_of(other)}"
            if key == "address" and {path[1], other[1]} == {"load_balancers", "servers"}:
                what += ": HAProxy cannot listen on port 6443 of a host that runs a K3s server"
                fix = "use another host for the load balancer"
            yield Finding((*path, key), what, fix, repr(value))


def pools(cluster: AnyCluster) -> Iterator[Finding]:
    """Each worker is in a pool, and each pool has a worker that is not in quarantine."""
    names = list(cluster.pools)
    for path, worker in hosts_of(cluster):
        if not isinstance(worker, Worker):
            continue
        if worker.pool is None and len(names) > 1:
            yield Finding((*path, "pool"), f"missing: there is more than one pool: {', '.join(names)}")
        elif worker.pool is not None and worker.pool not in cluster.pools:
            yield Finding(
                (*path, "pool"), f"is not in pools{_meant(worker.pool, names)}", "", repr(worker.pool)
            )
    for name, workers in _workers_of(cluster).items():
        if not workers:
            fix = f"remove it, or set `pool: {name}` on its workers"
            yield Finding(("pools", name), "has no worker", fix)
        elif cluster.validation.enabled and all(worker.quarantine for _, worker in workers):
            text = f"all workers of pool {name} are in quarantine, so nothing is left to measure"
            fix = "end one quarantine, or set validation.enabled: false"
            yield Finding((*workers[0][0], "quarantine"), text, fix)


def _meant(given: str, known: Collection[str]) -> str:
    """The end of a message on an unknown name."""
    return did_you_mean(given, known) or f"; expected one of: {', '.join(known)}"


def topology(cluster: AnyCluster) -> Iterator[Finding]:
    """The workers of a pool have the same levels, and no pool sets the labels of levels."""
    for name, workers in _workers_of(cluster).items():
        for level, label in LABELS.items():
            having = [path for path, worker in workers if getattr(worker.topology, level)]
            if not having:
                continue
            for path, worker in workers:
                if not getattr(worker.topology, level):
                    text = (
                        f"missing: {len(having)} of {len(workers)} workers of pool {name} have it, and "
                        "schedulers pass over a Node without it"
                    )
                    yield Finding((*path, "topology", level), text, "set it")
            if label in getattr(cluster.pools[name], "labels", ()):
                text = f"is the label of {path_of(having[0])}.topology.{level}"
                yield Finding(("pools", name, "labels"), text, "remove it here", repr(label))


def login(ssh: Ssh, secrets: Collection[str], project: str) -> Iterator[Finding]:
    """The SSH key has one source; `secrets`: the secret keys that the stack of PROJECT has set."""
    secret = f"{project}:sshPrivateKey"
    sources = {"ssh.key_file": ssh.key_file, "ssh.agent": ssh.agent, secret: "sshPrivateKey" in secrets}
    chosen = [name for name, given in sources.items() if given]
    if not chosen:
        fix = (
            "set ssh.key_file, or ssh.agent: true, or the key as a secret: `pulumi config set --secret "
            f"{secret} --stack {STACK} < KEYFILE`, of a new stack after `pulumi stack init --stack {STACK}`"
        )
        yield Finding(("ssh",), "no SSH key configured", fix)
    elif len(chosen) > 1:
        yield Finding(("ssh",), f"more than one key configured: {', '.join(chosen)}", "keep one")


# Hosts of K3s


def api_front(cluster: Cluster) -> Iterator[Finding]:
    """There is one way to the API: load balancers, a shared address, or an endpoint of the site."""
    count = len(cluster.hosts.load_balancers)
    shared, own = cluster.hosts.virtual_ip, cluster.api_endpoint
    for setting, given in (("load_balancers", count), ("virtual_ip", shared)):
        if own and given:
            yield Finding(("api_endpoint",), f"given together with hosts.{setting}", "remove one of the two")
    if not (count or shared or own):
        yield Finding(
            ("hosts", "load_balancers"),
            "missing: the Kubernetes API needs an address",
            "list 1 or 2 hosts, or set hosts.virtual_ip, or `api_endpoint: {address: ADDRESS}` of your own",
        )
    where = ("hosts", "virtual_ip")
    if count == 2 and not shared:
        yield Finding(where, "missing: two load balancers share an address", "add {address, interface}")
    if count == 1 and shared:
        yield Finding(where, "given with one load balancer", "remove it, or add a second load balancer")
    servers = len(cluster.hosts.servers)
    if not count and shared and not own and servers < MIN_SHARING:
        text = f"got {counted(servers, 'server')} and no load balancer, expected at least {MIN_SHARING}"
        fix = "give the address of the server as `api_endpoint: {address: ADDRESS}` instead"
        yield Finding(where, text, fix)


def virtual_ip(cluster: Cluster) -> Iterator[Finding]:
    """The shared address is free, and of the family of the hosts that share it."""
    if (shared := cluster.hosts.virtual_ip) is None:
        return
    taken = [path for path, host in hosts_of(cluster) if host.address == shared.address]
    if taken:
        text, fix = f"is the address of {path_of(taken[0])}", "use a free address of the same network"
        yield Finding(("hosts", "virtual_ip", "address"), text, fix, repr(shared.address))
    count = len(cluster.hosts.load_balancers)
    if count == 1:
        return
    family = ipaddress.ip_address(shared.address).version
    for path, host in hosts_of(cluster):
        if path[1] != ("load_balancers" if count else "servers"):
            continue
        address = ip_of(host.address)
        if address is None or address.version != family:
            text = (
                f"{host.address!r}: keepalived takes only IPv{family} addresses together with "
                f"hosts.virtual_ip.address '{shared.address}', and no names"
            )
            yield Finding((*path, "address"), text, "give the IP address")


def nfs_server(cluster: Cluster) -> Iterator[Finding]:
    """The NFS server is a host of its own, a load balancer or a server."""
    section, own, where = cluster.nfs_server, cluster.hosts.nfs_server, ("nfs_server", "host")
    if section is None:
        if own:
            text, fix = "missing, and hosts.nfs_server is given", "add `nfs_server: {folder: /srv/x}`"
            yield Finding(("nfs_server",), text, fix)
        return
    if section.host is None:
        if not own:
            fix = "name a load balancer or server, or add a host as hosts.nfs_server"
            yield Finding(where, "missing", fix)
        return
    if own:
        yield Finding(where, "given together with hosts.nfs_server", "remove one of the two")
        return
    roles = {host.name: path[1] for path, host in hosts_of(cluster)}
    if section.host not in roles:
        names = [name for name, role in roles.items() if role != "workers"]
        yield Finding(where, f"is not in hosts{_meant(section.host, names)}", "", repr(section.host))
    elif roles[section.host] == "workers":
        text = "is a worker: a host that mounts NFS from itself can deadlock when memory runs out"
        yield Finding(where, text, "use another host", repr(section.host))


# K3s


def networks(cluster: Cluster) -> Iterator[Finding]:
    """The networks of pods, services and hosts are of one family, and do not overlap.

    For a host that is given by name, preflight compares the address.
    """
    pods, services = (ipaddress.ip_network(c) for c in (cluster.k3s.cluster_cidr, cluster.k3s.service_cidr))
    of_pods, of_services = ("k3s", "cluster_cidr"), ("k3s", "service_cidr")
    one_family = "are not of one family (IPv4, IPv6), and K3s does not start"
    if pods.overlaps(services):
        fix = "use networks that do not overlap"
        yield Finding(of_services, f"overlaps k3s.cluster_cidr '{pods}'", fix, f"'{services}'")
    if pods.version != services.version:
        fix = "use two networks of the family of the hosts' addresses"
        yield Finding(of_services, f"and k3s.cluster_cidr '{pods}' {one_family}", fix, f"'{services}'")
    given: list[tuple[KeyPath, str]] = [(path, host.address) for path, host in hosts_of(cluster)]
    if cluster.hosts.virtual_ip:
        given.append((("hosts", "virtual_ip"), cluster.hosts.virtual_ip.address))
    if cluster.api_endpoint:
        given.append((("api_endpoint",), cluster.api_endpoint.address))
    known = [(path, ip) for path, address in given if (ip := ip_of(address))]
    for where, network in ((of_pods, pods), (of_services, services)):
        inside = [f"{path_of(path)} '{ip}'" for path, ip in known if ip in network]
        if inside:
            text = f"contains {listed(inside, 1)}, so pods could not reach what is there"
            fix = f"set {path_of(where)} to a network that contains no host"
            yield Finding(where, text, fix, f"'{network}'")
    nodes = [(path, ip) for path, ip in known if path[1:2] in (("servers",), ("workers",))]
    others = [f"{path_of(path)} '{ip}'" for path, ip in nodes if ip.version != pods.version]
    if others:
        fix = "use networks of the family of the hosts' addresses"
        yield Finding(of_pods, f"and {listed(others, 1)} {one_family}", fix, f"'{pods}'")


# kube-controller-manager gives each node such a part (--node-cidr-mask-size-ipv4, -ipv6).
_NODE_PREFIX = {4: 24, 6: 64}


def node_prefix(k3s: K3s) -> int:
    """The prefix length of each node's part of the pod network."""
    options = dict(map(parsed, arguments_of(k3s.server_args, "kube-controller-manager-arg")))
    version = ipaddress.ip_network(k3s.cluster_cidr).version
    names = (f"node-cidr-mask-size-ipv{version}", "node-cidr-mask-size")
    given = next((options[name] for name in names if options.get(name, "").isdecimal()), None)
    return int(given) if given else _NODE_PREFIX[version]


def pod_network_size(cluster: Cluster) -> Iterator[Finding]:
    """The pod network has a network for every node: without one a node never becomes Ready."""
    options = dict(map(parsed, arguments_of(cluster.k3s.server_args, "kube-controller-manager-arg")))
    if options.get("allocate-node-cidrs") == "false":
        return
    pods, prefix = ipaddress.ip_network(cluster.k3s.cluster_cidr), node_prefix(cluster.k3s)
    room = 1 << (prefix - pods.prefixlen) if prefix >= pods.prefixlen else 0
    nodes = len(cluster.hosts.servers) + len(cluster.workers)
    if nodes > room:
        text = f"has room for {room} nodes (a /{prefix} per node), got {nodes}"
        fix = f"use a /{prefix - (nodes - 1).bit_length()} or larger"
        yield Finding(("k3s", "cluster_cidr"), text, fix, f"'{pods}'")


def bucket(cluster: Cluster, secrets: Collection[str]) -> Iterator[Finding]:
    """Both keys of the bucket for snapshots are set."""
    missing = [f"busbar:{key}" for key in ("s3AccessKey", "s3SecretKey") if key not in secrets]
    if cluster.k3s.snapshots.s3 and missing:
        text = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        yield Finding(
            ("k3s", "snapshots", "s3"), text, f"for each: `pulumi config set --secret KEY --stack {STACK}`"
        )


# Keys that busbar writes into config.yaml, with the setting that changes them.
_WRITTEN_KEYS: Mapping[str, str | None] = {
    **dict.fromkeys(("token-file", "agent-token-file", "server", "cluster-init")),
    "node-name": "hosts",
    "tls-san": "k3s.tls_san",
    **{key: f"k3s.{key.replace('-', '_')}" for key in ("cluster-cidr", "service-cidr", "flannel-backend")},
    "disable": "k3s.disable",
    **dict.fromkeys(("secrets-encryption", "write-kubeconfig-mode")),
    "etcd-snapshot-schedule-cron": "k3s.snapshots.schedule",
    "etcd-snapshot-retention": "k3s.snapshots.retention",
    "etcd-s3": "k3s.snapshots.s3",
    **{f"etcd-s3-{key}": f"k3s.snapshots.s3.{key}" for key in ("endpoint", "bucket", "region", "folder")},
    "node-label": "pools.<pool>.labels",
    "node-taint": "pools.<pool>.taints",
}
# On servers these two are free (to taint the control plane); busbar sets none there.
_FREE_ON_SERVERS = {"node-label", "node-taint"}
# Keys with which busbar's own steps fail, with the reason.
_API_PORT = "load balancer, workers and scripts use port 6443"
_SCRIPTS_USE = "the scripts of busbar use"
_EMBEDDED = "servers run embedded etcd"
_VPN = "K3s would use the addresses of that VPN"
_CONTAINERD = "the operators configure K3s's own containerd"
_BREAKING_KEYS: Mapping[str, str] = {
    "data-dir": f"{_SCRIPTS_USE} /var/lib/rancher/k3s",
    **dict.fromkeys(("https-listen-port", "supervisor-port", "apiserver-port"), _API_PORT),
    "flannel-external-ip": "pod traffic would leave through the external network",
    "vpn-auth": f"it is a key, and {_VPN}",
    "vpn-auth-file": _VPN,
    "bind-address": f"{_SCRIPTS_USE} 127.0.0.1:6443",
    "write-kubeconfig": f"{_SCRIPTS_USE} /etc/rancher/k3s/k3s.yaml",
    **{f"datastore-{key}": _EMBEDDED for key in ("endpoint", "cafile", "certfile", "keyfile")},
    "config": "busbar writes config.yaml; put files of your own into config.yaml.d/",
    "with-node-id": "it changes the name of the node",
    "disable-agent": "a server without a Node never becomes Ready",
    **{
        f"disable-{part}": "every server runs the whole control plane"
        for part in ("etcd", "apiserver", "controller-manager", "scheduler")
    },
    **dict.fromkeys(("cluster-reset", "cluster-reset-restore-path"), "a reset is done by hand, once"),
    "log": "the scripts of busbar read the journal",
    **dict.fromkeys(("docker", "container-runtime-endpoint"), _CONTAINERD),
    "rootless": "K3s runs as root",
}
# K3s's own arguments come first, and the last one counts.
_OF_PODS, _OF_SERVICES = (f"k3s.{key}_cidr sets it, and a cluster keeps it" for key in ("cluster", "service"))
_BREAKING_ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "kubelet-arg": {
        "root-dir": f"{_SCRIPTS_USE} /var/lib/kubelet",
        "hostname-override": "it changes the name of the node",
        "register-node": "a host without a Node never becomes Ready",
    },
    "kube-apiserver-arg": {"secure-port": _API_PORT, "service-cluster-ip-range": _OF_SERVICES},
    "kube-controller-manager-arg": {"cluster-cidr": _OF_PODS, "service-cluster-ip-range": _OF_SERVICES},
}


def k3s_keys(cluster: Cluster) -> Iterator[Finding]:
    """No key of config.yaml and no argument of a part of Kubernetes is busbar's own, or breaks its steps."""
    for setting in ("server_args", "agent_args"):
        given = getattr(cluster.k3s, setting)
        for key in given:
            name = key.removesuffix("+")
            if name in _WRITTEN_KEYS and not (setting == "server_args" and name in _FREE_ON_SERVERS):
                instead = _WRITTEN_KEYS[name]
                fix = f"use {instead}" if instead else "remove it"
                yield Finding(("k3s", setting, key), "busbar writes this key itself", fix)
            if reason := _BREAKING_KEYS.get(name):
                yield Finding(("k3s", setting, key), f"is not supported: {reason}", "remove it")
        for key, breaking in _BREAKING_ARGUMENTS.items():
            for argument in arguments_of(given, key):
                if reason := breaking.get(parsed(argument)[0]):
                    text = f"is not supported: {reason}"
                    yield Finding(("k3s", setting, key), text, "remove it", repr(argument))


_CONTRADICTS = "contradicts the AuthenticationConfiguration with which busbar opens /livez and /readyz"


def api_server_arguments(cluster: Cluster) -> Iterator[Finding]:
    """No argument of the API server contradicts its users."""
    where = ("k3s", "server_args", "kube-apiserver-arg")
    for argument in arguments_of(cluster.k3s.server_args, where[-1]):
        option, _ = parsed(argument)
        if option in ("anonymous-auth", "authentication-config"):
            yield Finding(where, _CONTRADICTS, "remove it", repr(argument))
        if option.startswith("oidc-"):
            text = f"{argument!r}: the API server does not start with it beside AuthenticationConfiguration"
            yield Finding(where, text, "use k3s.authentication.jwt")


# Operators


def operator_versions(cluster: Cluster) -> Iterator[Finding]:
    """The operators support GPUDirect RDMA together, and versions are written as in their repository."""
    gpu, network = cluster.gpu_operator, cluster.network_operator
    if (
        gpu.enabled
        and network.enabled
        and versions.contains(versions.GPU_OPERATOR_WITHOUT_GPUDIRECT, gpu.version)
        and versions.contains(versions.NETWORK_OPERATOR_WITHOUT_GPUDIRECT, network.version)
    ):
        text = f"does not support GPUDirect RDMA together with Network Operator {network.version}"
        yield Finding(("gpu_operator", "version"), text, f"use {versions.IN_WORDS}", repr(gpu.version))
    if gpu.repository_url == versions.NVIDIA_CHARTS and not gpu.version.startswith("v"):
        fix = f"'v{gpu.version}'"
        yield Finding(("gpu_operator", "version"), "lacks the leading v", fix, repr(gpu.version))
    if network.repository_url == versions.NVIDIA_CHARTS and network.version.startswith("v"):
        where, fix = ("network_operator", "version"), repr(network.version.removeprefix("v"))
        yield Finding(where, "must not have a leading v", fix, repr(network.version))


def resource(cluster: Cluster) -> Iterator[Finding]:
    """The SR-IOV device plugin takes the name of the resource (its pkg/utils, ValidResourceName)."""
    operator = cluster.network_operator
    name = operator.resource.rpartition("/")[2]
    if operator.enabled and not re.fullmatch(r"[A-Za-z0-9_]+", name):
        text = f"the SR-IOV device plugin refuses the name {name!r} of {operator.resource!r}"
        yield Finding(("network_operator", "resource"), text, "use letters, digits and _ only after the /")


def node_features(cluster: Cluster) -> Iterator[Finding]:
    """Something brings Node Feature Discovery: the network chart's rules need its CRD, the plugin its labels.

    By default that is the GPU Operator's chart. `nfd.enabled` of the network chart names another source, and
    the value false, which busbar sets too, one of the site.
    """
    gpu, network = cluster.gpu_operator, cluster.network_operator
    if not network.enabled or "enabled" in _nfd(network) or (gpu.enabled and _nfd(gpu).get("enabled", True)):
        return
    setting = "gpu_operator.values.nfd.enabled" if gpu.enabled else "gpu_operator.enabled"
    yield Finding(
        ("network_operator", "values", "nfd", "enabled"),
        f"missing: the Network Operator needs Node Feature Discovery, which {setting}: false leaves out",
        "set it to true to install that of the Network Operator's chart, or to false if the site has its own",
    )


def _nfd(operator: Chart) -> Mapping[str, Any]:
    found = operator.values.get("nfd")
    return found if isinstance(found, dict) else {}


# The NCCL validation

# Levels of NCCL_DEBUG at which NCCL prints the transport of each edge.
_EVIDENCE = ("INFO", "TRACE")
_FABRICS = {"infiniband": "infiniband", "ethernet": "roce"}
_OTHER_PROFILE = (
    "give the pool a validation.profile of its hardware (busbar nccl profiles), or null: the pool's numbers "
    "are used then"
)
# With smaller ones a fabric does not reach its bandwidth.
_LARGE_BYTES = 1 << 30
# An expectation or a floor below this part of what is computed is hardly meant.
_FAR_BELOW = 0.5


def measurement(cluster: AnyCluster) -> Iterator[Finding]:
    """The validation can run and can pass."""
    wanted = cluster.validation
    if wanted.min_bytes > wanted.max_bytes:
        text = f"{wanted.min_bytes} is more than validation.max_bytes, {wanted.max_bytes}"
        yield Finding(("validation", "min_bytes"), text, "lower min_bytes or raise max_bytes")
    yield from _of_one_section(("validation",), wanted, wanted.collectives)
    for name, pool in cluster.pools.items():
        if pool.validation:
            where = ("pools", name, "validation")
            yield from _of_one_section(where, pool.validation, wanted.collectives)
        if (slots := wanted.slots_per_worker) and slots > pool.gpus:
            text = f"{slots} is more than the {counted(pool.gpus, 'GPU')} of pools.{name}"
            yield Finding(("validation", "slots_per_worker"), text)


def _of_one_section(
    where: KeyPath, wanted: NcclPoolSettings, collectives: Collection[str]
) -> Iterator[Finding]:
    """Errors in the values of one section, `validation` or that of a pool."""
    for collective in wanted.expected_by_collective:
        if collective not in collectives:
            path, fix = (*where, "expected_by_collective", collective), "add it there, or remove it here"
            yield Finding(path, "is not in validation.collectives", fix)
    for name, value in wanted.env.items():
        path = (*where, "env", name)
        if name == "NCCL_DEBUG" and value.upper() not in _EVIDENCE:
            text = f"with {value} NCCL does not print what it uses, and missing evidence is never a pass"
            yield Finding(path, text, "remove it (busbar sets INFO)")
        if name == "NCCL_IB_HCA":
            fix = f"list the HCAs in {path_of(where)}.hcas"
            yield Finding(path, "the gate does not see what is set here", fix)


def hardware(cluster: AnyCluster) -> Iterator[Finding]:
    """No profile or value lets a pool pass without its fabric, or fits no pool."""
    if not cluster.validation.enabled:
        return
    for name, pool in cluster.pools.items():
        wanted, where = cluster.validation_of(name), _path(cluster, name, "profile")
        profile = wanted.system
        if profile and wanted.transport is None and profile.transport == "socket":
            text = f"{profile.name} accepts TCP between hosts, and pools.{name} has {pool.rails} rails"
            fix = f"{_OTHER_PROFILE}; if TCP is meant, set {path_of(where[:-1])}.transport: socket"
            yield Finding(where, text, fix)
        if profile and pool.gpu_model and is_gpu(pool.gpu_model, profile.gpu) is False:
            text = f"{profile.name} is for {profile.gpu}, and pools.{name} has {pool.gpu_model}"
            yield Finding(where, text, _OTHER_PROFILE)
        if profile and profile.fabric is not None and profile.fabric != _FABRICS[pool.link_layer]:
            text = f"{profile.name} is for {profile.fabric}, and pools.{name}.link_layer is {pool.link_layer}"
            yield Finding(where, text, _OTHER_PROFILE)
        for path, given, ceiling, _ in _given(cluster, name, pool):
            if ceiling is not None and given > ceiling:
                text = f"{given:g} GB/s is more than pools.{name} can carry, {ceiling:.4g} GB/s"
                yield Finding(path, text, "give GB/s (10^9 bytes), not Gb/s, or the pool a value of its own")


def _path(cluster: AnyCluster, pool: str, key: str) -> KeyPath:
    """The path of the setting that a pool uses: its own, else that of `validation`."""
    own = cluster.pools[pool].validation
    return ("pools", pool, "validation", key) if own and key in own.model_fields_set else ("validation", key)


def _given(
    cluster: AnyCluster, name: str, pool: Hardware
) -> Iterator[tuple[KeyPath, float, float | None, float | None]]:
    """Path, value, ceiling and computed value of each bandwidth that is given, for one pool. GB/s."""
    wanted = cluster.validation_of(name)
    by_collective = _path(cluster, name, "expected_by_collective")
    given = {(*by_collective, key): (key, value) for key, value in wanted.expected_by_collective.items()}
    if wanted.expected_busbw_gbps is not None:
        path = _path(cluster, name, "expected_busbw_gbps")
        given[path] = (wanted.collectives[0], wanted.expected_busbw_gbps)
    if not given:
        return
    computed = pool.expectation(wanted, len(cluster.workers_of(name)) or None)
    for path, (collective, value) in given.items():
        bounds = computed.bounds(collective)
        yield path, value, bounds.ceiling, bounds.expected


# Warnings


def warnings(cluster: Cluster) -> list[Finding]:
    """Findings about settings that are allowed but probably not intended."""
    return [
        *_of_k3s(cluster),
        *measurement_warnings(cluster),
        *_of_host_keys(cluster),
        *dict.fromkeys(_of_images(cluster)),
    ]


def untested_versions(cluster: Cluster) -> Iterator[Finding]:
    """Warn of versions that are in no known set; not repeated by updates that do not change them."""
    k3s, gpu, network = cluster.k3s.version, cluster.gpu_operator, cluster.network_operator
    if gpu.enabled and network.enabled and not versions.known_set(k3s, gpu.version, network.version):
        text = "this combination of K3s, GPU Operator and Network Operator is in no known set; it is untested"
        yield Finding(("versions",), text, f"use {versions.IN_WORDS}")
    for key, operator, default in (
        ("gpu_operator", gpu, versions.GPU_OPERATOR),
        ("network_operator", network, versions.NETWORK_OPERATOR),
    ):
        if operator.enabled and (note := versions.NOT_RUN.get(operator.version)):
            yield Finding((key, "version"), f"was not run: {note}", f"use {default}", repr(operator.version))


def _of_k3s(cluster: Cluster) -> Iterator[Finding]:
    """Warn of components that the cluster will lack, of names that are none, and of unbounded issuers."""
    if cluster.k3s.flannel_backend == "none":
        text = "none: no Node becomes Ready without another CNI plugin"
        fix = "use vxlan, unless the servers have the manifest of one"
        yield Finding(("k3s", "flannel_backend"), text, fix)
    if cluster.k3s.snapshots.s3 and not cluster.k3s.snapshots.s3.folder:
        # K3s counts all whose names begin with etcd-snapshot (k3s-io/k3s pkg/etcd/s3/s3.go).
        text = "missing: another cluster with this bucket and no folder deletes the snapshots of this one"
        yield Finding(("k3s", "snapshots", "s3", "folder"), text, "set it to a name of this cluster")
    for index, name in enumerate(cluster.k3s.disable):
        where = ("k3s", "disable", index)
        if name == "coredns":
            text = "without coredns the launcher of the NCCL validation does not find its workers"
            yield Finding(where, text, "remove it, unless the servers have the manifest of another DNS")
        if name not in PACKAGED:
            text = f"is not a component of K3s ({', '.join(PACKAGED)}), and only disables a manifest"
            yield Finding(where, text, "remove it, unless the servers have one", repr(name))
    for index, each in enumerate(cluster.k3s.authentication.jwt):
        mappings = each.get("claimMappings")
        groups = mappings.get("groups") if isinstance(mappings, Mapping) else None
        if isinstance(groups, Mapping) and not groups.get("prefix") and not each.get("userValidationRules"):
            yield Finding(
                ("k3s", "authentication", "jwt", index, "claimMappings", "groups"),
                "without a prefix the issuer can name the group system:masters, which may do everything",
                "set a prefix, or add a userValidationRule with the expression "
                "user.groups.all(group, !group.startsWith('system:'))",
            )


def _of_host_keys(cluster: Cluster) -> Iterator[Finding]:
    """Warn of a host key that several hosts share: their images were cloned with the keys."""
    paths: dict[str, list[KeyPath]] = {}
    for path, host in hosts_of(cluster):
        paths.setdefault(host.host_key, []).append(path)
    if bastion := cluster.ssh.bastion:
        paths.setdefault(bastion.host_key, []).append(("ssh", "bastion"))
    for first, *others in paths.values():
        if others:
            names = ", ".join(map(path_of, others))
            yield Finding(
                (*first, "host_key"),
                f"the same key as {names}: each of these hosts can impersonate the others",
                "on clones `rm /etc/ssh/ssh_host_* && ssh-keygen -A`, restart sshd, and enter the new keys",
            )


def floating(path: KeyPath, image: str) -> Finding:
    """The finding about a floating image."""
    what = "has no fixed tag: another image may run the next time"
    return Finding(path, what, "give its tag or its digest", repr(image))


def _of_images(cluster: Cluster) -> Iterator[Finding]:
    """Warn of floating images, and of a measurement without a fabric."""
    operator = cluster.mpi_operator
    if operator.enabled and is_floating(operator.image):
        yield floating(("mpi_operator", "image"), operator.image)
    if not cluster.validation.enabled:
        return
    for name in cluster.pools:
        if is_floating(image := cluster.validation_of(name).image):
            yield floating(_path(cluster, name, "image"), image)
    if len(cluster.workers) == 1:
        text = "with one worker the validation stays on the host and tests no fabric"
        yield Finding(("hosts", "workers"), text)


def measurement_warnings(cluster: AnyCluster) -> list[Finding]:
    """Warnings, each once, about settings that pass more results than probably intended."""
    if not cluster.validation.enabled:
        return []
    found = (each for name, pool in cluster.pools.items() for each in _of_pool(cluster, name, pool))
    return list(dict.fromkeys(found))


def _of_pool(cluster: AnyCluster, name: str, pool: Hardware) -> Iterator[Finding]:
    wanted = cluster.validation_of(name)
    if wanted.tolerance > _FAR_BELOW:
        text = f"{wanted.tolerance:g} accepts {1 - wanted.tolerance:.0%} of the expected bandwidth"
        yield Finding(_path(cluster, name, "tolerance"), text, "0.1 accepts 90 %")
    if wanted.transport == "socket" and wanted.expected_busbw_gbps is None:
        text = "no bandwidth can be computed for sockets"
        yield Finding(_path(cluster, name, "transport"), text, "set expected_busbw_gbps")
    for path, given, _, computed in _given(cluster, name, pool):
        if computed is not None and given < _FAR_BELOW * computed:
            text = f"{given:g} GB/s is far below what pools.{name} should do, {computed:.4g} GB/s"
            yield Finding(path, text)
    if wanted.required_transport != "socket" and wanted.chosen("max_bytes") < _LARGE_BYTES:
        text = f"{wanted.chosen('max_bytes')} bytes are too few for the bandwidth of a fabric"
        yield Finding(("validation", "max_bytes"), text, "8G")
