"""The networks of a pool as Kubernetes objects.

With whereabouts each network has a NetworkAttachmentDefinition. With nv-ipam it has an IPPool and a resource
of the NVIDIA Network Operator, from which the operator makes the NetworkAttachmentDefinition.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from typing import Any

from busbar.manifests.operators import NETWORK_OPERATOR, Operator
from stacks.training.package.networks.attach import definition_name
from stacks.training.package.networks.config import Ipam, Network

Manifest = dict[str, Any]

MULTUS = Operator(config_key="multus", release="rke2-multus", namespace="multus")
# A file in K3s's own folder; by default whereabouts looks for its configuration in /etc/cni/net.d
# (k8snetworkplumbingwg/whereabouts v0.8.0, pkg/config/config.go).
_WHEREABOUTS_FILE = "/var/lib/rancher/k3s/agent/etc/cni/net.d/whereabouts.d/whereabouts.conf"
# The version that both containerd and the plugins of containernetworking support.
_CNI_VERSION = "1.0.0"
# The annotation names the device plugin's resource; Multus passes the device to the CNI plugin.
_RESOURCE_ANNOTATION = "k8s.v1.cni.cncf.io/resourceName"
_READY = {"pulumi.com/waitFor": "jsonpath={.status.state}=ready"}
_LABELS = {"app.kubernetes.io/managed-by": "busbar"}


def render(namespace: str, pool: str, network: Network, workers: Sequence[str]) -> list[Manifest]:
    """The objects of one network, in the order in which they are made.

    `namespace`: namespace of the definition. `workers`: the Nodes of the pool.
    """
    name = definition_name(pool, network)
    if network.ipam.type == "whereabouts":
        return [_definition(namespace, name, network)]
    return [_ip_pool(name, network.ipam, workers), _OF_OPERATOR[network.type](namespace, name, network)]


def _definition(namespace: str, name: str, network: Network) -> Manifest:
    config: dict[str, Any] = {"cniVersion": _CNI_VERSION, "name": name, "type": network.type}
    if network.type == "macvlan":
        config |= {"master": network.master, "mode": network.mode or "bridge"}
        config |= {"mtu": network.mtu} if network.mtu else {}
    config["ipam"] = {
        "type": "whereabouts",
        "range": network.ipam.subnet,
        "configuration_path": _WHEREABOUTS_FILE,
        **({"exclude": list(network.ipam.exclude)} if network.ipam.exclude else {}),
    }
    annotations = {_RESOURCE_ANNOTATION: network.resource} if network.resource else {}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(_LABELS),
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {"config": json.dumps(config, sort_keys=True)},
    }


def _ip_pool(name: str, ipam: Ipam, workers: Sequence[str]) -> Manifest:
    of_pool = {"key": "kubernetes.io/hostname", "operator": "In", "values": sorted(workers)}
    excluded = [ipaddress.ip_network(part) for part in ipam.exclude]
    return {
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1",
        "kind": "IPPool",
        # nv-ipam reads the pools of its own namespace.
        "metadata": {"name": name, "namespace": NETWORK_OPERATOR.namespace, "labels": dict(_LABELS)},
        "spec": {
            "subnet": ipam.subnet,
            "perNodeBlockSize": ipam.addresses_per_node,
            # Without the selector, Nodes without a pod of the pool would get a block too.
            "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [of_pool]}]},
            **(
                {"exclusions": [{"startIP": str(e[0]), "endIP": str(e[-1])} for e in excluded]}
                if excluded
                else {}
            ),
        },
    }


def _macvlan(namespace: str, name: str, network: Network) -> Manifest:
    more = {"mtu": network.mtu} if network.mtu else {}
    spec = {"master": network.master, "mode": network.mode or "bridge", **more}
    return _of_operator("MacvlanNetwork", namespace, name, spec)


def _ipoib(namespace: str, name: str, network: Network) -> Manifest:
    return _of_operator("IPoIBNetwork", namespace, name, {"master": network.master})


def _host_device(namespace: str, name: str, network: Network) -> Manifest:
    return _of_operator("HostDeviceNetwork", namespace, name, {"resourceName": _short(network)})


def _ib_sriov(namespace: str, name: str, network: Network) -> Manifest:
    """A SriovIBNetwork, which must be in the namespace of its operator and has no state to wait for."""
    return {
        "apiVersion": "sriovnetwork.openshift.io/v1",
        "kind": "SriovIBNetwork",
        "metadata": {"name": name, "namespace": NETWORK_OPERATOR.namespace, "labels": dict(_LABELS)},
        "spec": {
            "resourceName": _short(network),
            "networkNamespace": namespace,
            "linkState": "enable",
            "ipam": _nv_ipam(name),
        },
    }


_OF_OPERATOR = {"macvlan": _macvlan, "ipoib": _ipoib, "host-device": _host_device, "ib-sriov": _ib_sriov}


def _of_operator(kind: str, namespace: str, name: str, spec: dict[str, Any]) -> Manifest:
    """An object of the Network Operator's own kinds: cluster-scoped, ready when its definition exists."""
    return {
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "labels": dict(_LABELS), "annotations": dict(_READY)},
        "spec": {"networkNamespace": namespace, "ipam": _nv_ipam(name), **spec},
    }


def _nv_ipam(pool: str) -> str:
    return json.dumps({"type": "nv-ipam", "poolName": pool, "poolType": "ippool"}, sort_keys=True)


def _short(network: Network) -> str:
    """The resource without its domain, which the operators add themselves."""
    return str(network.resource).rpartition("/")[2]
