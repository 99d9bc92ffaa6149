"""The operators: Helm values, and the request for the wait that ends their installation.

A new operator is one entry here, beside its component, configuration, version and helm_values/<release>.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from busbar import versions
from busbar.config import NetworkOperator
from busbar.config.cluster import Taint
from busbar.finding import STACK, Finding, Fix
from busbar.manifests.scheduling import CONTROL_PLANE_TOLERATION, worker_tolerations
from busbar.models import parse_yaml

Values = dict[str, Any]
# How long all that decides must stay so: the operator rolls out a changed policy only some seconds later.
STABLE_SECONDS = 10


class OperatorConfig(Protocol):
    """The configuration that every operator has."""

    @property
    def enabled(self) -> bool: ...
    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def timeout_seconds(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator.

    `config_key`: its key in `busbar:cluster`. `derived`: Helm values that follow from its configuration and
    the taints of the workers. `policy`: a kube.allocatable.PolicySpec as JSON. `fix`: what to check where its
    devices do not appear. `labels`: those of the Nodes on which its device plugin runs. `lease`: that of the
    pod that acts. `releases`: one version of each major release, none of which an upgrade may leave out.
    `needed`: label `app` of the DaemonSets without which a job gets no devices, by the Helm value whose
    `enabled` leaves it out. `seconds_per_node`: what a worker adds to the timeout of the wait.
    """

    config_key: str
    release: str
    namespace: str
    derived: Callable[[Any, Sequence[Taint]], Values] = lambda config, taints: {}
    policy: Mapping[str, Any] | None = None
    fix: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    lease: str = ""
    releases: Sequence[str] = ()
    needed: Mapping[str, str] = field(default_factory=dict)
    seconds_per_node: int = 0

    def values(self, folder: Path, config: OperatorConfig, taints: Sequence[Taint] = ()) -> Values:
        """Values of the release's file, derived ones, the stack's own. Raises ValueError and OSError."""
        return merge(merge(load(folder, self.release), self.derived(config, taints)), config.values)

    def skipped_releases(self, installed: str, wanted: str) -> Finding | None:
        """Find that an upgrade from `installed` to `wanted` leaves out major releases, and name them."""
        between = versions.left_out(self.releases, installed, wanted)
        text = (
            f"cannot follow {installed}, which is installed: only an upgrade to the next major release is "
            f"supported, and {' and '.join(between)} would be left out"
        )
        fix = Fix(f"upgrade to {', then to '.join(between)} first, each with", ("up", STACK))
        return Finding((self.config_key, "version"), text, fix, repr(wanted)) if between else None

    def wait_request(self, config: OperatorConfig, resource: str, nodes: Mapping[str, int]) -> dict[str, Any]:
        """stdin of `busbar wait allocatable`; `nodes` is the number of devices by node name.

        Where another tool has installed the operator, its namespace is not known, and its policy decides.
        """
        request = {
            "resource": resource,
            "nodes": dict(nodes),
            "deadline_seconds": config.timeout_seconds + self.seconds_per_node * len(nodes),
            "policy": dict(self.policy) if self.policy else None,
            "namespace": None,
            "fix": self.fix,
            "labels": dict(self.labels),
        }
        if not config.enabled:
            return request
        apps = [app for key, app in self.needed.items() if _is_enabled(config.values.get(key))]
        rollout = {"lease": self.lease, "apps": apps}
        of_release = {"namespace": self.namespace, "release": self.release}
        return {**request, **of_release, "rollout": rollout, "stable_seconds": STABLE_SECONDS}


def _is_enabled(value: Any) -> bool:
    return not (isinstance(value, Mapping) and value.get("enabled") is False)


def load(folder: Path, name: str) -> Values:
    """The mapping in `folder`/`name`.yaml. Raises ValueError where it is not one, and OSError."""
    values = parse_yaml((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{folder / name}.yaml: expected a mapping of Helm values")
    return values


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """`over` merged over `base` as Helm does it: mappings are merged, anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both_mappings = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both_mappings else value  # type: ignore[arg-type]
    return merged


def _gpu_operator(config: Any, taints: Sequence[Taint]) -> Values:
    """Operands and NFD's worker must tolerate the workers' taints; a list replaces the chart's own."""
    if not taints:
        return {}
    tolerations = worker_tolerations(taints)
    return {
        "daemonsets": {"tolerations": tolerations},
        "node-feature-discovery": {"worker": {"tolerations": [CONTROL_PLANE_TOLERATION, *tolerations]}},
    }


GPU_OPERATOR = Operator(
    config_key="gpu_operator",
    release="gpu-operator",
    namespace="gpu-operator",
    derived=_gpu_operator,
    policy={
        "kind": "ClusterPolicy",
        "path": "/apis/nvidia.com/v1/clusterpolicies",
        "must_be_ready": True,
        # "ready" with one of these: no GPU was found (NVIDIA/gpu-operator,
        # controllers/clusterpolicy_controller.go).
        "empty_reasons": ["NFDLabelsMissing", "NoGPUNodes"],
    },
    labels={"feature.node.kubernetes.io/pci-10de.present": "true"},
    fix="run `nvidia-smi` on the node; if it lists the GPUs, see the GPU Operator's pods named above, and "
    "run `systemctl restart k3s-agent` if the NVIDIA runtime was installed after K3s",
    lease="53822513.nvidia.com",
    releases=versions.GPU_OPERATOR_RELEASES,
    needed={
        "toolkit": "nvidia-container-toolkit-daemonset",
        "devicePlugin": "nvidia-device-plugin-daemonset",
    },
    # A quarter of the nodes at once (helm_values/gpu-operator.yaml), and hundreds pull from one registry.
    seconds_per_node=5,
)
RESTART_HCA_PLUGIN = (
    "kubectl -n nvidia-network-operator delete pod -l app=sriovdp --field-selector spec.nodeName=NODE"
)
# The DaemonSets take their tolerations from the NicClusterPolicy. That also covers parts which the
# measurement does not need: where another tool has installed it, it is quoted, not required to be ready.
NETWORK_OPERATOR = Operator(
    config_key="network_operator",
    release="network-operator",
    namespace="nvidia-network-operator",
    policy={"kind": "NicClusterPolicy", "path": "/apis/mellanox.com/v1alpha1/nicclusterpolicies"},
    # Node Feature Discovery sets the first, the operator the second (manifests/state-sriov-device-plugin).
    labels={
        "feature.node.kubernetes.io/pci-15b3.present": "true",
        "network.nvidia.com/operator.mofed.wait": "false",
    },
    fix="run `ls /sys/class/infiniband` on the node and check that the ports are ACTIVE; compare "
    "their PCI addresses (readlink /sys/class/infiniband/*/device) with those of the NicClusterPolicy. If "
    "they agree, their driver was loaded after the device plugin had looked for them, at its start: "
    f"`{RESTART_HCA_PLUGIN}`. A reboot can bring the fault back, because the driver may be late again",
    lease="12620820.mellanox.com",
    releases=versions.NETWORK_OPERATOR_RELEASES,
    needed={"sriovDevicePlugin": "sriovdp"},
    # One node at a time, because its DaemonSet has no updateStrategy: a pod ends, another one pulls its image
    # and starts, and after 4 s it offers the HCAs (manifests/state-sriov-device-plugin).
    seconds_per_node=20,
)
MPI_OPERATOR = Operator(
    config_key="mpi_operator",
    release="mpi-operator",
    namespace="mpi-operator",
    derived=lambda config, taints: {"image": config.image},
)


HEAD: Mapping[str, Any] = {
    "apiVersion": "mellanox.com/v1alpha1",
    "kind": "NicClusterPolicy",
    # The operator ignores a policy of any other name (Mellanox/network-operator, pkg/consts).
    "metadata": {"name": "nic-cluster-policy", "labels": {"app.kubernetes.io/managed-by": "busbar"}},
}
PLUGIN_IMAGE = "sriov-network-device-plugin"
MELLANOX_VENDOR = "15b3"


def render_policy(config: NetworkOperator, taints: Iterable[Taint], rails: Sequence[str]) -> dict[str, Any]:
    """The policy: whole HCAs, or VFs passed into a VM, as `config.resource`; `rails` are PCI addresses.

    No OFED driver: the host has its own. No Multus: verbs over InfiniBand need no interface in the pod.
    """
    selected = json.dumps(plugin_config(config, rails), sort_keys=True)
    spec = {
        "sriovDevicePlugin": {
            "image": PLUGIN_IMAGE,
            "repository": config.image_repository,
            "version": f"network-operator-v{config.version}",
            "config": selected,
        },
        "tolerations": worker_tolerations(taints),
    }
    return {**HEAD, "spec": spec}


def plugin_config(config: NetworkOperator, rails: Sequence[str]) -> dict[str, Any]:
    """The device plugin's configuration. Raises ValueError without rails, which it takes as all HCAs."""
    if not rails and "pciAddresses" not in config.selectors:
        again = Fix("ask a worker again", ("up", STACK, "--converge", "WORKER"))
        raise ValueError(f"no PCI address of a rail is known. Fix: {again}")
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
