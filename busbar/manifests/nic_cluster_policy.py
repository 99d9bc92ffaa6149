"""The NicClusterPolicy: which HCAs the SR-IOV device plugin offers, and under which name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from busbar.config.operators import NetworkOperator
from busbar.config.pools import Pool
from busbar.manifests.helm_values import tolerations
from busbar.manifests.nccljob import GPU_RESOURCE

API_VERSION = "mellanox.com/v1alpha1"
KIND = "NicClusterPolicy"
# The operator ignores a policy of any other name (Mellanox/network-operator, pkg/consts).
NAME = "nic-cluster-policy"
PLUGIN_IMAGE = "sriov-network-device-plugin"
MELLANOX_VENDOR = "15b3"

# Names of the link types in the device plugin's selectors (sriov-network-device-plugin, pkg/types).
LINK_TYPES = {"infiniband": "infiniband", "ethernet": "ether"}


def render(config: NetworkOperator, pools: Mapping[str, Pool]) -> dict[str, Any]:
    """The policy: whole HCAs, or VFs passed into a VM, as `config.resource`.

    No OFED driver (the host has its own), no Multus: NCCL's verbs need the device and no network interface
    in the pod.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/managed-by": "busbar"}},
        "spec": {
            "sriovDevicePlugin": {
                "image": PLUGIN_IMAGE,
                "repository": config.image_repository,
                "version": config.image_tag or f"network-operator-v{config.version}",
                "config": json.dumps(plugin_config(config, pools), sort_keys=True),
            },
            "tolerations": [
                {"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"},
                *tolerations(pools.values()),
            ],
        },
    }


def plugin_config(config: NetworkOperator, pools: Mapping[str, Pool]) -> dict[str, Any]:
    """The device plugin's own configuration: one resource, and what belongs to it."""
    prefix, _, name = config.resource.rpartition("/")
    selectors: dict[str, Any] = {
        "vendors": [MELLANOX_VENDOR],
        "isRdma": True,
        # Vendor and RDMA alone also match an Ethernet port for storage or management on the same host.
        "linkTypes": sorted({LINK_TYPES[pool.link_layer] for pool in pools.values()}),
    }
    resource = {"resourceName": name, "selectors": selectors | config.selectors}
    return {"resourceList": [{"resourcePrefix": prefix, **resource} if prefix else resource]}
