"""The names of resources: components make them here, and commands read them back here.

The names of a component's children begin with its own name. A resource that acts on a host is called
`COMPONENT@HOST`, and no other name has an `@`. That component has the constant name that the program gives to
`Cluster`, and never the name of a stack, a cluster or a pool: renaming one of these would uninstall the host.
"""

from __future__ import annotations

from collections.abc import Collection

CLUSTER = "busbar"
"""The name of the Cluster in `__main__.py`."""
GPU_OPERATOR, NETWORK_OPERATOR = "gpu-operator", "network-operator"
CONTROL_PLANE, WORKER = "control-plane", "worker"
VALIDATION_NAMESPACE = "busbar-validation"
"""The namespace of the measurements on the cluster."""
CLUSTER_ID = "cluster-id"
"""The Stash by which the stack of a capability keeps to its cluster; its input is `{"id": ID}`."""
_REMOVAL = "-removal"


def on_host(component: str, host: str) -> str:
    """The resource of a component that installs a host, which is also the host's owner."""
    return f"{component}@{host}"


def removal_of(installation: str) -> str:
    """The resource that uninstalls what `installation` has installed, when it is deleted."""
    component, _, host = installation.partition("@")
    return on_host(component + _REMOVAL, host)


def installations(names: Collection[str]) -> list[str]:
    """Those of the names of a state that install a host."""
    known = {*names}
    return [name for name in names if removal_of(name) in known]


def component_of(name: str) -> str:
    """The component whose resource acts on a host."""
    return name.partition("@")[0]


def host_of(name: str) -> str:
    """The host on which a resource acts; empty if it acts on none."""
    return name.partition("@")[2]


def is_removal(name: str) -> bool:
    """Whether the resource uninstalls a host when it is deleted."""
    return component_of(name).endswith(_REMOVAL) and bool(host_of(name))


def token(kind: str, rotation: int, cluster: str = CLUSTER) -> str:
    """The password with which servers or agents (`kind`) join, of this number of rotations."""
    return f"{cluster}-{CONTROL_PLANE}-{kind}-token{f'-{rotation}' if rotation else ''}"


def release(component: str) -> str:
    """The Helm release of an operator."""
    return f"{component}-release"
