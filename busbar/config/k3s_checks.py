"""Checks of K3s: networks, labels and taints, keys of config.yaml, downloads, snapshots.

Each yields `<path>: <what>. Fix: <what to do>`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from busbar import versions
from busbar.config.partial import PartialConfig


def networks(config: PartialConfig) -> Iterator[str]:
    """The networks of pods, services and hosts do not overlap."""
    pods, services = (ipaddress.ip_network(c) for c in (config.k3s.cluster_cidr, config.k3s.service_cidr))
    if pods.overlaps(services):
        yield (
            f"k3s.service_cidr: '{services}' overlaps k3s.cluster_cidr '{pods}'. "
            "Fix: use networks that do not overlap"
        )
    shared = [("hosts.virtual_ip.address", config.virtual_ip)] if config.virtual_ip else []
    for path, address in [(f"{h.path}.address", h.address) for h in config.hosts if h.address] + shared:
        try:
            ip = ipaddress.ip_address(address or "")
        except ValueError:
            continue
        for setting, network in (("k3s.cluster_cidr", pods), ("k3s.service_cidr", services)):
            if ip in network:
                yield (
                    f"{path}: '{ip}' is inside {setting} '{network}', so pods could not reach the host. "
                    f"Fix: set {setting} to a network that contains no host"
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


def checksums(config: PartialConfig) -> Iterator[str]:
    """A checksum for everything that the hosts download."""
    k3s = config.k3s
    if k3s.checksums_file:
        return
    configured = k3s.sha256 is not None and (k3s.sha256.amd64 or k3s.sha256.arm64)
    if not configured and k3s.version not in versions.K3S_SHA256:
        yield (
            f"k3s.version: the checksum of {k3s.version!r} is unknown. Fix: save the sha256sum file "
            "published with the release beside the stack and set k3s.checksums_file, or set k3s.sha256.amd64"
        )
    for index, image in enumerate(k3s.images):
        if image.sha256 is None:
            yield (
                f"k3s.images[{index}]: the checksum of {image.url!r} is unknown. "
                "Fix: set sha256, or k3s.checksums_file"
            )


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


# Keys that busbar writes into config.yaml, with the setting that changes them.
_WRITTEN_KEYS: Mapping[str, str | None] = {
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
    "etcd-s3": "k3s.snapshots.s3",
    "etcd-s3-endpoint": "k3s.snapshots.s3.endpoint",
    "etcd-s3-bucket": "k3s.snapshots.s3.bucket",
    "etcd-s3-region": "k3s.snapshots.s3.region",
    "etcd-s3-folder": "k3s.snapshots.s3.folder",
    "node-label": "pools.<pool>.labels",
    "node-taint": "pools.<pool>.taints",
}
# On servers these two are free (to taint the control plane); busbar sets none there.
_FREE_ON_SERVERS = {"node-label", "node-taint"}


def written_keys(config: PartialConfig) -> Iterator[str]:
    """No key of config.yaml that busbar writes itself."""
    for setting, key in _keys(config):
        name = key.removesuffix("+")
        if name in _WRITTEN_KEYS and not (setting == "server_args" and name in _FREE_ON_SERVERS):
            instead = _WRITTEN_KEYS[name]
            fix = f"use {instead}" if instead else "remove it"
            yield f"k3s.{setting}.{key}: busbar writes this key itself. Fix: {fix}"
    for argument in _arguments(config.k3s.server_args, "kube-apiserver-arg"):
        if argument.startswith(("anonymous-auth", "authentication-config")):
            yield (
                f"k3s.server_args.kube-apiserver-arg: {argument!r} contradicts the "
                "AuthenticationConfiguration with which busbar opens /livez and /readyz. Fix: remove it"
            )


def _keys(config: PartialConfig) -> Iterator[tuple[str, str]]:
    for setting, arguments in (
        ("server_args", config.k3s.server_args),
        ("agent_args", config.k3s.agent_args),
    ):
        for key in arguments:
            yield setting, key


def _arguments(config: Mapping[str, Any], key: str) -> list[str]:
    """The values of an argument list such as kubelet-arg, also if it is a single value."""
    values = [value for name in (key, f"{key}+") for value in _as_list(config.get(name))]
    return [str(value) for value in values]


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


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
