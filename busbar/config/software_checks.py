"""Checks of versions and operators. Each yields findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from busbar import versions as known
from busbar.config.cluster import Cluster
from busbar.config.errors import Finding
from busbar.config.operators import Chart
from busbar.config.partial import PartialConfig
from busbar.config.pools import CONTROL_PLANE


def versions(config: PartialConfig) -> Iterator[Finding]:
    """Refuse version sets that are known to fail, and chart versions not written as in their repository."""
    k3s, gpu, network = config.k3s.version, config.gpu_operator, config.network_operator
    if any(known.contains(each, k3s) for each in known.K3S_WITHOUT_READYZ):
        text = "does not read the AuthenticationConfiguration that the health check of /readyz needs"
        yield Finding(("k3s", "version"), text, "use v1.31.9, v1.32.5, v1.33.1 or later", repr(k3s))
    if (
        gpu.enabled
        and network.enabled
        and known.contains(known.GPU_OPERATOR_WITHOUT_GPUDIRECT, gpu.version)
        and known.contains(known.NETWORK_OPERATOR_WITHOUT_GPUDIRECT, network.version)
    ):
        text = f"does not support GPUDirect RDMA together with Network Operator {network.version}"
        yield Finding(("gpu_operator", "version"), text, f"use {known.IN_WORDS}", repr(gpu.version))
    if gpu.repository_url == known.NVIDIA_CHARTS and not gpu.version.startswith("v"):
        yield Finding(
            ("gpu_operator", "version"), "lacks the leading v", f"'v{gpu.version}'", repr(gpu.version)
        )
    if network.repository_url == known.NVIDIA_CHARTS and network.version.startswith("v"):
        plain = network.version.removeprefix("v")
        yield Finding(
            ("network_operator", "version"), "must not have a leading v", f"{plain!r}", repr(network.version)
        )


def version_warnings(cluster: Cluster) -> Iterator[Finding]:
    """Warn of versions that no vendor lists together."""
    k3s, gpu, network = cluster.k3s.version, cluster.gpu_operator, cluster.network_operator
    if gpu.enabled and network.enabled and not known.known_set(k3s, gpu.version, network.version):
        text = "this combination of K3s, GPU Operator and Network Operator is in no known set; it is untested"
        yield Finding(("versions",), text, f"use {known.IN_WORDS}")


def resource(config: PartialConfig) -> Iterator[Finding]:
    """Check the name of the resource (pkg/utils ValidResourceName of the SR-IOV device plugin)."""
    operator = config.network_operator
    name = operator.resource.rpartition("/")[2]
    if operator.enabled and not re.fullmatch(r"[A-Za-z0-9_]+", name):
        text = f"the SR-IOV device plugin refuses the name {name!r} of {operator.resource!r}"
        yield Finding(("network_operator", "resource"), text, "use letters, digits and _ only after the /")


def node_features(config: PartialConfig) -> Iterator[Finding]:
    """Something brings Node Feature Discovery: the network chart's rules need its CRD, the plugin its labels.

    By default that is the GPU Operator's chart. `nfd.enabled` of the network chart names another source, and
    the value false, which busbar sets too, one of the site.
    """
    gpu, network = config.gpu_operator, config.network_operator
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


def server_taints(cluster: Cluster) -> Iterator[Finding]:
    """Check that CoreDNS tolerates the servers' taints, if no Node is left for pods without tolerations.

    K3s has no setting for CoreDNS's tolerations (manifests/coredns.yaml).
    """
    path = ("k3s", "server_args", "node-taint")
    try:
        found = [str(taint) for taint in cluster.server_taints]
    except ValueError:
        yield Finding(path, "has a text that is not a taint", "write KEY=VALUE:EFFECT")
        return
    known_to_k3s = re.compile(rf"CriticalAddonsOnly=.*|{CONTROL_PLANE}=.*:NoSchedule")
    if (
        refused := [each for each in found if not known_to_k3s.fullmatch(each)]
    ) and "coredns" not in cluster.k3s.disable:
        yield Finding(
            path,
            "is not tolerated by CoreDNS, which runs nowhere because all pools have taints too",
            f"use CriticalAddonsOnly=true:NoExecute or {CONTROL_PLANE}=true:NoSchedule",
            ", ".join(map(repr, refused)),
        )
