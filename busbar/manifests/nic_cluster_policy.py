"""The NicClusterPolicy: which HCAs the SR-IOV device plugin offers, and under which name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from busbar.config import NetworkOperator
from busbar.config.cluster import Taint
from busbar.manifests.scheduling import worker_tolerations

HEAD: Mapping[str, Any] = {
    "apiVersion": "mellanox.com/v1alpha1",
    "kind": "NicClusterPolicy",
    # The operator ignores a policy of any other name (Mellanox/network-operator, pkg/consts).
    "metadata": {"name": "nic-cluster-policy", "labels": {"app.kubernetes.io/managed-by": "busbar"}},
}
PLUGIN_IMAGE = "sriov-network-device-plugin"
MELLANOX_VENDOR = "15b3"


def render(config: NetworkOperator, taints: Iterable[Taint], rails: Sequence[str]) -> dict[str, Any]:
    """The policy: whole HCAs, or VFs passed into a VM, as `config.resource`; `rails` are PCI addresses.

    No OFED driver: the host has its own. Multus only on request: NCCL's verbs need the device, and over
    InfiniBand no network interface in the pod.
    """
    plugin = {
        **_image(config, PLUGIN_IMAGE),
        "config": json.dumps(plugin_config(config, rails), sort_keys=True),
    }
    return {
        **HEAD,
        "spec": {
            "sriovDevicePlugin": plugin,
            **(_secondary_networks(config) if config.secondary_networks else {}),
            "tolerations": worker_tolerations(taints),
        },
    }


def _image(config: NetworkOperator, name: str) -> dict[str, Any]:
    return {
        "image": name,
        "repository": config.image_repository,
        "version": f"network-operator-v{config.version}",
    }


def _secondary_networks(config: NetworkOperator) -> dict[str, Any]:
    """Without the webhook of nv-ipam, which would need a certificate manager."""
    multus = {
        **_image(config, "multus-cni"),
        # With the default of 50Mi it is killed when many pods start at once (multus-cni#1383, #1312).
        "containerResources": [{"name": "kube-multus", "limits": {"cpu": "256m", "memory": "512Mi"}}],
    }
    return {
        "secondaryNetwork": {
            "cniPlugins": _image(config, "plugins"),
            "multus": multus,
            "ipoib": _image(config, "ipoib-cni"),
        },
        "nvIpam": {**_image(config, "nvidia-k8s-ipam"), "enableWebhook": False},
    }


def plugin_config(config: NetworkOperator, rails: Sequence[str]) -> dict[str, Any]:
    """The device plugin's configuration: one resource, and the selectors of its devices.

    Raises ValueError without rails: the plugin takes an empty list as "all HCAs".
    """
    if not rails and "pciAddresses" not in config.selectors:
        raise ValueError("no PCI address of a rail is known. Fix: run preflight again (pulumi up)")
    prefix, _, name = config.resource.rpartition("/")
    selectors: dict[str, Any] = {
        "vendors": [MELLANOX_VENDOR],
        "isRdma": True,
        # The rails that preflight has found. The plugin looks at neither port state nor rate, and at the link
        # type only where the HCA has a network interface (pkg/devices/gen_net.go).
        "pciAddresses": list(rails),
    }
    resource = {"resourceName": name, "selectors": {**selectors, **config.selectors}}
    return {"resourceList": [{"resourcePrefix": prefix, **resource} if prefix else resource]}
