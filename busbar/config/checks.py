"""Checks across the parts: what no single part can see, as `<path>: <what>; <what to do>`."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Iterator

from busbar import versions
from busbar.config.draft import Draft, HostDraft
from busbar.config.errors import did_you_mean
from busbar.nccl import profiles


def findings(draft: Draft, secrets: Collection[str]) -> Iterator[str]:
    """All findings; `secrets` names the secret keys that the stack has set, such as sshPrivateKey."""
    for check in CHECKS:
        yield from check(draft)
    yield from _login(draft, secrets)
    yield from _bucket(draft, secrets)


def _duplicates(draft: Draft) -> Iterator[str]:
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


def _quorum(draft: Draft) -> Iterator[str]:
    count = len(draft.group("servers"))
    if count and count % 2 == 0:
        yield (
            f"hosts.servers: {count} given, an odd number is needed: etcd with {count} members "
            f"survives no more losses than with {count - 1}; remove one or add one"
        )


def _virtual_ip(draft: Draft) -> Iterator[str]:
    count = len(draft.group("load_balancers"))
    if count == 2 and not draft.has_virtual_ip:
        yield "hosts.virtual_ip: missing: two load balancers need an address to share: {address, interface}"
    if count == 1 and draft.has_virtual_ip:
        yield "hosts.virtual_ip: given with one load balancer; remove it, or add a second load balancer"


def _pools(draft: Draft) -> Iterator[str]:
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


def _networks(draft: Draft) -> Iterator[str]:
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


def _versions(draft: Draft) -> Iterator[str]:
    for finding in judged(draft):
        if finding.level == "error":
            yield f"{finding.where}: {finding.text}"
    gpu, network = draft.gpu_operator, draft.network_operator
    if gpu.repository_url == versions.NVIDIA_CHARTS and not gpu.version.startswith("v"):
        yield f"gpu_operator.version: {gpu.version!r} lacks the v of this chart's versions: 'v{gpu.version}'"
    if network.repository_url == versions.NVIDIA_CHARTS and network.version.startswith("v"):
        plain = network.version.removeprefix("v")
        yield f"network_operator.version: {network.version!r}: this chart's versions have no v: {plain!r}"


def judged(draft: Draft) -> list[versions.Finding]:
    """What the table of versions says; an operator that is not installed does not count."""
    gpu, network = draft.gpu_operator, draft.network_operator
    return versions.judge(
        draft.k3s.version,
        gpu.version if gpu.enabled else None,
        network.version if network.enabled else None,
    )


def _checksums(draft: Draft) -> Iterator[str]:
    k3s = draft.k3s
    if k3s.checksums_file:
        return
    named = k3s.sha256 is not None and (k3s.sha256.amd64 or k3s.sha256.arm64)
    if not named and k3s.version not in versions.K3S_SHA256:
        yield (
            f"k3s.version: no checksum is known for {k3s.version!r}: put the sha256sum file published "
            "with the release beside the stack and name it as k3s.checksums_file, or give k3s.sha256.amd64"
        )
    for index, image in enumerate(k3s.images):
        if image.sha256 is None:
            yield f"k3s.images[{index}]: no checksum for {image.url!r}: give sha256, or k3s.checksums_file"


def _images(draft: Draft) -> Iterator[str]:
    seen: dict[str, int] = {}
    for index, image in enumerate(draft.k3s.images):
        name = image.url.rpartition("/")[2]
        if not name.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")):
            yield f"k3s.images[{index}].url: {image.url!r} is not a .tar, .tar.gz, .tgz or .tar.zst archive"
        if (first := seen.setdefault(name, index)) != index:
            yield (
                f"k3s.images[{index}].url: the file name {name!r} is also that of k3s.images[{first}]; "
                "the hosts keep archives by file name"
            )


# What busbar itself writes into config.yaml, and the setting that changes it.
_OWN_KEYS = {
    "token-file": None,
    "agent-token-file": None,
    "server": None,
    "cluster-init": None,
    "node-name": "hosts",
    "tls-san": None,
    "cluster-cidr": "k3s.cluster_cidr",
    "service-cidr": "k3s.service_cidr",
    "flannel-backend": "k3s.flannel_backend",
    "disable": "k3s.disable",
    "secrets-encryption": None,
    "write-kubeconfig-mode": None,
    "etcd-snapshot-schedule-cron": "k3s.snapshots.schedule",
    "etcd-snapshot-retention": "k3s.snapshots.retention",
    "node-label": "pools.<pool>.labels",
    "node-taint": "pools.<pool>.taints",
}
# On a server these two are the operator's own choice (taint the control plane); there busbar sets none.
_FREE_ON_SERVERS = {"node-label", "node-taint"}


def _own_keys(draft: Draft) -> Iterator[str]:
    for setting, arguments in (("server_args", draft.k3s.server_args), ("agent_args", draft.k3s.agent_args)):
        for key in arguments:
            name = key.removesuffix("+")
            if name in _OWN_KEYS and not (setting == "server_args" and name in _FREE_ON_SERVERS):
                instead = _OWN_KEYS[name]
                cure = f"use {instead}" if instead else "remove it"
                yield f"k3s.{setting}.{key}: busbar writes this key itself; {cure}"
    arguments = draft.k3s.server_args.get("kube-apiserver-arg", [])
    for argument in arguments if isinstance(arguments, list) else [arguments]:
        if str(argument).startswith(("anonymous-auth", "authentication-config")):
            yield (
                f"k3s.server_args.kube-apiserver-arg: {argument!r} contradicts the "
                "AuthenticationConfiguration with which busbar opens /livez and /readyz; remove it"
            )


def _labels(draft: Draft) -> Iterator[str]:
    for name, pool in draft.pools.items():
        labels = pool.get("labels")
        for key in labels if isinstance(labels, dict) else ():
            if str(key).startswith(("node-role.kubernetes.io/", "node-restriction.kubernetes.io/")):
                yield (
                    f"pools.{name}.labels: {key!r} may not be set by a node itself: the kubelet refuses to "
                    "start; set it with kubectl afterwards"
                )


def _measurement(draft: Draft) -> Iterator[str]:
    validation = draft.validation
    if validation.min_bytes > validation.max_bytes:
        yield (
            f"validation.min_bytes: {validation.min_bytes} is more than validation.max_bytes, "
            f"{validation.max_bytes}"
        )
    if validation.profile is not None:
        try:
            profiles.load(validation.profile)
        except profiles.UnknownProfileError:
            names = profiles.names()
            hint = did_you_mean(validation.profile, names) or f"; there are: {', '.join(names)}"
            yield f"validation.profile: {validation.profile!r} is not known{hint}"
    for collective in validation.expected_by_collective:
        if collective not in validation.collectives:
            yield f"validation.expected_by_collective.{collective}: is not in validation.collectives; add it there"
    if len(set(validation.collectives)) < len(validation.collectives):
        yield f"validation.collectives: {', '.join(validation.collectives)}: each may be named once"
    for name, pool in draft.pools.items():
        gpus = str(pool.get("gpus", ""))
        slots = validation.slots_per_worker
        if slots is not None and gpus.isdigit() and slots > int(gpus):
            yield f"validation.slots_per_worker: {slots} is more than the {gpus} GPUs of pools.{name}"


CHECKS: tuple[Callable[[Draft], Iterator[str]], ...] = (
    _duplicates,
    _quorum,
    _virtual_ip,
    _pools,
    _networks,
    _versions,
    _checksums,
    _images,
    _own_keys,
    _labels,
    _measurement,
)


def _login(draft: Draft, secrets: Collection[str]) -> Iterator[str]:
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


def _bucket(draft: Draft, secrets: Collection[str]) -> Iterator[str]:
    if draft.k3s.snapshots.s3 is None:
        return
    missing = [f"busbar:{key}" for key in ("s3AccessKey", "s3SecretKey") if key not in secrets]
    if missing:
        yield (
            f"k3s.snapshots.s3: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; "
            "run `pulumi config set --secret KEY` for each"
        )
