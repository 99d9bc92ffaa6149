"""Checks of K3s: networks, labels and taints, downloads, snapshots.

Each yields `<path>: <what>. Fix: <what to do>`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator, Mapping
from urllib.parse import urlsplit

from pydantic import ValidationError

from busbar import versions
from busbar.config.errors import did_you_mean, sentence
from busbar.config.k3s import PACKAGED, RELEASE, Registries
from busbar.config.k3s_argument_checks import arguments_of, parsed
from busbar.config.partial import PartialConfig

_NODE_PATHS = ("hosts.servers", "hosts.workers")


def networks(config: PartialConfig) -> Iterator[str]:
    """The networks of pods, services and hosts are of one family, and do not overlap.

    Of a host with a name preflight compares the address.
    """
    pods, services = (ipaddress.ip_network(c) for c in (config.k3s.cluster_cidr, config.k3s.service_cidr))
    if pods.overlaps(services):
        yield (
            f"k3s.service_cidr: '{services}' overlaps k3s.cluster_cidr '{pods}'. "
            "Fix: use networks that do not overlap"
        )
    if pods.version != services.version:
        yield (
            f"k3s.service_cidr: '{services}' and k3s.cluster_cidr '{pods}' are not of one family (IPv4, "
            "IPv6), and K3s does not start. Fix: use two networks of the family of the hosts' addresses"
        )
    others: list[str] = []
    fronts = (
        ("hosts.virtual_ip.address", config.virtual_ip),
        ("api_endpoint.address", config.api_endpoint),
    )
    shared = [(path, address) for path, address in fronts if address]
    for path, address in [(f"{h.path}.address", h.address) for h in config.hosts if h.address] + shared:
        try:
            ip = ipaddress.ip_address(address or "")
        except ValueError:
            continue
        if ip.version != pods.version and path.startswith(_NODE_PATHS):
            others.append(f"{path.removesuffix('.address')} '{ip}'")
        for setting, network in (("k3s.cluster_cidr", pods), ("k3s.service_cidr", services)):
            if ip in network:
                yield (
                    f"{path}: '{ip}' is inside {setting} '{network}', so pods could not reach the host. "
                    f"Fix: set {setting} to a network that contains no host"
                )
    if others:
        more = f" and {len(others) - 1} others" if others[1:] else ""
        yield (
            f"k3s.cluster_cidr: '{pods}' and {others[0]}{more} are not of one family (IPv4, IPv6), and "
            "K3s does not start. Fix: use networks of the family of the hosts' addresses"
        )


# kube-controller-manager gives each node such a part (--node-cidr-mask-size-ipv4, -ipv6).
_NODE_PREFIX = {4: 24, 6: 64}


def pod_network_size(config: PartialConfig) -> Iterator[str]:
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
    nodes = len(config.group("servers")) + len(config.group("workers"))
    if nodes > room:
        wanted = prefix - (nodes - 1).bit_length()
        yield (
            f"k3s.cluster_cidr: '{pods}' has room for {room} nodes (a /{prefix} per node), got {nodes}. "
            f"Fix: use a /{wanted} or larger"
        )


def taints(config: PartialConfig) -> Iterator[str]:
    """Each pair of key and effect once: a second one is refused by the API server (core/validation)."""
    for name, pool in config.pools.items():
        seen: dict[tuple[str, str], int] = {}
        listed = pool.get("taints")
        for index, taint in enumerate(listed if isinstance(listed, list) else []):
            if not isinstance(taint, Mapping):
                continue
            key, effect = str(taint.get("key")).strip(), str(taint.get("effect")).strip()
            first = seen.setdefault((key, effect), index)
            if first != index:
                yield (
                    f"pools.{name}.taints[{index}]: key {key!r} with effect {effect!r} is also "
                    f"pools.{name}.taints[{first}]. Fix: keep one"
                )


def labels(config: PartialConfig) -> Iterator[str]:
    """No label that the kubelet refuses."""
    for name, pool in config.pools.items():
        given = pool.get("labels")
        for key in given if isinstance(given, Mapping) else ():
            if not _kubelet_accepts(str(key)):
                yield (
                    f"pools.{name}.labels: the kubelet does not start with {key!r}: a node may not set this "
                    "label itself. Fix: use a domain of your own, or set it with kubectl afterwards"
                )


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


def images(config: PartialConfig) -> Iterator[str]:
    """Image archives in a format that K3s reads, with unique file names."""
    seen: dict[str, int] = {}
    for index, image in enumerate(config.k3s.images):
        name = image.url.rpartition("/")[2]
        if not name.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")):
            yield f"k3s.images[{index}].url: {image.url!r} is not a .tar, .tar.gz, .tgz or .tar.zst archive"
        if (first := seen.setdefault(name, index)) != index:
            yield (
                f"k3s.images[{index}].url: the file name {name!r} is also that of k3s.images[{first}]; hosts "
                "store archives by file name. Fix: rename one"
            )


# From here on a name is a misspelt one; below, manifests of a site may be called so, such as our-storage.
_MISSPELT = 0.8


def disabled(config: PartialConfig) -> Iterator[str]:
    """No misspelt component: K3s installs what it does not find in the list, and says nothing."""
    for index, name in enumerate(config.k3s.disable):
        if name not in PACKAGED and (hint := did_you_mean(name, PACKAGED, cutoff=_MISSPELT)):
            yield f"k3s.disable[{index}]: {name!r} is not a component of K3s{hint}"


def disabled_warnings(config: PartialConfig) -> Iterator[str]:
    """What the cluster then lacks, and what K3s does not bring: a manifest of the site, or something else."""
    if config.k3s.flannel_backend == "none":
        yield (
            "k3s.flannel_backend: none: no Node becomes Ready without another CNI plugin. Fix: use vxlan, "
            "unless the servers have the manifest of one"
        )
    for index, name in enumerate(config.k3s.disable):
        if name == "coredns":
            yield (
                f"k3s.disable[{index}]: without coredns the launcher of the NCCL validation does not find "
                "its workers. Fix: remove it, unless the servers have the manifest of another DNS"
            )
        if name not in PACKAGED:
            yield (
                f"k3s.disable[{index}]: {name!r} is not a component of K3s ({', '.join(PACKAGED)}), and "
                "disables a manifest of this name only. Fix: remove it, unless the servers have one"
            )


def base_url(config: PartialConfig) -> Iterator[str]:
    """The URL to which busbar adds the version and the name of the file, and no more of it."""
    url = config.k3s.base_url
    release = re.search(RELEASE.replace(r"\+", r"(?:\+|%2B|-)"), url, re.IGNORECASE)
    at_github = urlsplit(url).hostname == "github.com" and not url.endswith("/releases/download")
    if release or at_github:
        fix = url[: release.start()].rstrip("/") if release and not at_github else versions.K3S_BASE_URL
        what = f"contains the version {release[0]}" if release else "is not the folder of the releases"
        yield (f"k3s.base_url: {url!r} {what}; busbar downloads <base_url>/<k3s.version>/k3s. Fix: {fix}")


def registries(config: PartialConfig) -> Iterator[str]:
    """What K3s reads: another key means nothing to it, and with another type of value it does not start."""
    try:
        Registries.model_validate(config.k3s.registries)
    except ValidationError as error:
        yield from (f"k3s.registries.{sentence(each, Registries)}" for each in error.errors())
    for name in config.k3s.registries.get("mirrors") or {}:
        if "://" in name:
            yield f"k3s.registries.mirrors: {name!r} is a URL. Fix: {name.partition('://')[2].rstrip('/')}"


def bucket(config: PartialConfig, secrets: Collection[str]) -> Iterator[str]:
    """Both keys of the bucket for snapshots are set."""
    if config.k3s.snapshots.s3 is None:
        return
    missing = [f"busbar:{key}" for key in ("s3AccessKey", "s3SecretKey") if key not in secrets]
    if missing:
        yield (
            f"k3s.snapshots.s3: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set. "
            "Fix: run `pulumi config set --secret KEY` for each"
        )
