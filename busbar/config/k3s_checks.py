"""Checks of K3s: networks, labels and taints, downloads, snapshots. Each yields findings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator, Mapping
from urllib.parse import urlsplit

from pydantic import ValidationError

from busbar import versions
from busbar.config.errors import Finding, KeyPath, did_you_mean, finding, path_of
from busbar.config.k3s import PACKAGED, RELEASE, Registries
from busbar.config.k3s_argument_checks import arguments_of, parsed
from busbar.config.partial import PartialConfig


def networks(config: PartialConfig) -> Iterator[Finding]:
    """The networks of pods, services and hosts are of one family, and do not overlap.

    For a host that is given by name, preflight compares the address.
    """
    pods, services = (ipaddress.ip_network(c) for c in (config.k3s.cluster_cidr, config.k3s.service_cidr))
    if pods.overlaps(services):
        text = f"overlaps k3s.cluster_cidr '{pods}'"
        yield Finding(("k3s", "service_cidr"), text, "use networks that do not overlap", f"'{services}'")
    if pods.version != services.version:
        text = f"and k3s.cluster_cidr '{pods}' are not of one family (IPv4, IPv6), and K3s does not start"
        fix = "use two networks of the family of the hosts' addresses"
        yield Finding(("k3s", "service_cidr"), text, fix, f"'{services}'")
    others: list[str] = []
    inside: dict[tuple[str, str], list[tuple[KeyPath, str]]] = {}
    given: list[tuple[KeyPath, str | None]] = [(host.path, host.address) for host in config.hosts]
    for place, address in (
        *given,
        (("hosts", "virtual_ip"), config.virtual_ip),
        (("api_endpoint",), config.api_endpoint),
    ):
        try:
            ip = ipaddress.ip_address(address or "")
        except ValueError:
            continue
        if ip.version != pods.version and place[1:2] in (("servers",), ("workers",)):
            others.append(f"{path_of(place)} '{ip}'")
        for setting, network in (("cluster_cidr", pods), ("service_cidr", services)):
            if ip in network:
                inside.setdefault((setting, str(network)), []).append((place, str(ip)))
    for (setting, text), found in inside.items():
        fix = f"set k3s.{setting} to a network that contains no host"
        first, ip_text = found[0]
        if found[1:]:
            what = f"contains {path_of(first)} '{ip_text}' and {len(found) - 1} more addresses of hosts"
            yield Finding(("k3s", setting), f"{what}, so pods could not reach them", fix, f"'{text}'")
        else:
            what = f"is inside k3s.{setting} '{text}', so pods could not reach the host"
            yield Finding((*first, "address"), what, fix, f"'{ip_text}'")
    if others:
        more = f" and {len(others) - 1} others" if others[1:] else ""
        text = f"and {others[0]}{more} are not of one family (IPv4, IPv6), and K3s does not start"
        fix = "use networks of the family of the hosts' addresses"
        yield Finding(("k3s", "cluster_cidr"), text, fix, f"'{pods}'")


# kube-controller-manager gives each node such a part (--node-cidr-mask-size-ipv4, -ipv6).
_NODE_PREFIX = {4: 24, 6: 64}


def pod_network_size(config: PartialConfig) -> Iterator[Finding]:
    """The pod network has a network for every node: without one a node never becomes Ready.

    The size per node cannot be changed later (kubernetes/kubernetes#114560, k3s-io/k3s#10442).
    """
    options = dict(
        parsed(argument) for argument in arguments_of(config.k3s.server_args, "kube-controller-manager-arg")
    )
    if options.get("allocate-node-cidrs") == "false":
        return
    pods = ipaddress.ip_network(config.k3s.cluster_cidr)
    names = (f"node-cidr-mask-size-ipv{pods.version}", "node-cidr-mask-size")
    given = next((options[name] for name in names if options.get(name, "").isdecimal()), None)
    prefix = int(given) if given else _NODE_PREFIX[pods.version]
    room = 1 << (prefix - pods.prefixlen) if prefix >= pods.prefixlen else 0
    nodes = len(config.group("servers")) + len(config.workers)
    if nodes > room:
        wanted = prefix - (nodes - 1).bit_length()
        text = f"has room for {room} nodes (a /{prefix} per node), got {nodes}"
        yield Finding(("k3s", "cluster_cidr"), text, f"use a /{wanted} or larger", f"'{pods}'")


def taints(config: PartialConfig) -> Iterator[Finding]:
    """Refuse a pair of key and effect that is listed twice, as the API server does (core/validation)."""
    for name, pool in config.pools.items():
        seen: dict[tuple[str, str], int] = {}
        listed = pool.get("taints")
        for index, taint in enumerate(listed if isinstance(listed, list) else []):
            if not isinstance(taint, Mapping):
                continue
            key, effect = str(taint.get("key")).strip(), str(taint.get("effect")).strip()
            first = seen.setdefault((key, effect), index)
            if first != index:
                text = f"key {key!r} with effect {effect!r} is also pools.{name}.taints[{first}]"
                yield Finding(("pools", name, "taints", index), text, "keep one")


def labels(config: PartialConfig) -> Iterator[Finding]:
    """Refuse labels that the kubelet refuses."""
    for name, pool in config.pools.items():
        given = pool.get("labels")
        for key in given if isinstance(given, Mapping) else ():
            if not _kubelet_accepts(str(key)):
                text = f"the kubelet does not start with {key!r}: a node may not set this label itself"
                fix = "use a domain of your own, or set it with kubectl afterwards"
                yield Finding(("pools", name, "labels"), text, fix)


# kubernetes/kubernetes staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go
_KUBELET_LABELS = {
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
}


def _kubelet_accepts(key: str) -> bool:
    def inside(*domains: str) -> bool:
        return any(prefix == domain or prefix.endswith(f".{domain}") for domain in domains)

    prefix = key.strip().rpartition("/")[0]
    if key.strip() in _KUBELET_LABELS or not inside("kubernetes.io", "k8s.io"):
        return True
    return inside("kubelet.kubernetes.io", "node.kubernetes.io")


def images(config: PartialConfig) -> Iterator[Finding]:
    """Check that image archives are in a format that K3s reads, and that their file names are unique."""
    seen: dict[str, int] = {}
    for index, image in enumerate(config.k3s.images):
        name = image.url.rpartition("/")[2]
        if not name.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")):
            text = "is not a .tar, .tar.gz, .tgz or .tar.zst archive"
            yield Finding(("k3s", "images", index, "url"), text, found=repr(image.url))
        if (first := seen.setdefault(name, index)) != index:
            yield Finding(
                ("k3s", "images", index, "url"),
                f"the file name {name!r} is also that of k3s.images[{first}]; hosts store "
                "archives by file name",
                "rename one",
            )


# A name at least this similar to a component is misspelt; others may be manifests of the site (our-storage).
_MISSPELT = 0.8


def disabled(config: PartialConfig) -> Iterator[Finding]:
    """Refuse misspelt components: K3s silently installs every component that is not in the list."""
    for index, name in enumerate(config.k3s.disable):
        if name not in PACKAGED and (hint := did_you_mean(name, PACKAGED, cutoff=_MISSPELT)):
            yield Finding(("k3s", "disable", index), f"is not a component of K3s{hint}", found=repr(name))


def disabled_warnings(config: PartialConfig) -> Iterator[Finding]:
    """Warn of components that the cluster will lack, and of names that are not components of K3s."""
    if config.k3s.flannel_backend == "none":
        text = "none: no Node becomes Ready without another CNI plugin"
        fix = "use vxlan, unless the servers have the manifest of one"
        yield Finding(("k3s", "flannel_backend"), text, fix)
    for index, name in enumerate(config.k3s.disable):
        if name == "coredns":
            text = "without coredns the launcher of the NCCL validation does not find its workers"
            fix = "remove it, unless the servers have the manifest of another DNS"
            yield Finding(("k3s", "disable", index), text, fix)
        if name not in PACKAGED:
            yield Finding(
                ("k3s", "disable", index),
                f"is not a component of K3s ({', '.join(PACKAGED)}), and disables a manifest of "
                "this name only",
                "remove it, unless the servers have one",
                repr(name),
            )


def base_url(config: PartialConfig) -> Iterator[Finding]:
    """Check that the base URL is the folder of all releases: busbar appends the version and the file name."""
    url = config.k3s.base_url
    release = re.search(RELEASE.replace(r"\+", r"(?:\+|%2B|-)"), url, re.IGNORECASE)
    at_github = urlsplit(url).hostname == "github.com" and not url.endswith("/releases/download")
    if release or at_github:
        fix = url[: release.start()].rstrip("/") if release and not at_github else versions.K3S_BASE_URL
        what = f"contains the version {release[0]}" if release else "is not the folder of the releases"
        yield Finding(
            ("k3s", "base_url"), f"{what}; busbar downloads <base_url>/<k3s.version>/k3s", fix, repr(url)
        )


def registries(config: PartialConfig) -> Iterator[Finding]:
    """Check registries.yaml: K3s ignores unknown keys, and does not start with a value of the wrong type."""
    try:
        Registries.model_validate(config.k3s.registries)
    except ValidationError as error:
        yield from (finding(each, Registries).below("k3s", "registries") for each in error.errors())
    for name in config.k3s.registries.get("mirrors") or {}:
        if "://" in name:
            yield Finding(
                ("k3s", "registries", "mirrors"), "is a URL", name.partition("://")[2].rstrip("/"), repr(name)
            )


def bucket(config: PartialConfig, secrets: Collection[str]) -> Iterator[Finding]:
    """Check that both keys of the bucket for snapshots are set."""
    if config.k3s.snapshots.s3 is None:
        return
    missing = [f"busbar:{key}" for key in ("s3AccessKey", "s3SecretKey") if key not in secrets]
    if missing:
        text = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        yield Finding(("k3s", "snapshots", "s3"), text, "run `pulumi config set --secret KEY` for each")


def authentication_warnings(config: PartialConfig) -> Iterator[Finding]:
    """Warn of issuers that could make anybody an administrator by the group system:masters."""
    for index, each in enumerate(config.k3s.authentication.jwt):
        mappings = each.get("claimMappings")
        groups = mappings.get("groups") if isinstance(mappings, Mapping) else None
        if isinstance(groups, Mapping) and not groups.get("prefix") and not each.get("userValidationRules"):
            yield Finding(
                ("k3s", "authentication", "jwt", index, "claimMappings", "groups"),
                "without a prefix the issuer can name the group system:masters, which may do everything",
                "set a prefix, or add a userValidationRule with the expression "
                "user.groups.all(group, !group.startsWith('system:'))",
            )
