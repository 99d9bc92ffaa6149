"""The NicClusterPolicy: which HCAs the SR-IOV device plugin offers, and under which name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from busbar.config.operators import NetworkOperator
from busbar.config.pools import Pool
from busbar.manifests.scheduling import taints_of, worker_tolerations

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

    Neither an OFED driver (the host has its own) nor Multus: NCCL's verbs need the device, not a network
    interface in the pod.
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
            "tolerations": worker_tolerations(taints_of(pools.values())),
        },
    }


def plugin_config(config: NetworkOperator, pools: Mapping[str, Pool]) -> dict[str, Any]:
    """The device plugin's configuration: one resource, and the selectors of its devices."""
    prefix, _, name = config.resource.rpartition("/")
    selectors: dict[str, Any] = {
        "vendors": [MELLANOX_VENDOR],
        "isRdma": True,
        # Vendor and RDMA alone would also match an Ethernet port for storage or management.
        "linkTypes": sorted({LINK_TYPES[pool.link_layer] for pool in pools.values()}),
    }
    resource = {"resourceName": name, "selectors": selectors | config.selectors}
    return {"resourceList": [{"resourcePrefix": prefix, **resource} if prefix else resource]}
