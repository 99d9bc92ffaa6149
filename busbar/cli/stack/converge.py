"""What an update applies again: `busbar up STACK --converge HOST`, and steps that failed before."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from busbar.cli.stack import events
from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.errors import StackError
from busbar.cli.stack.target import ALL, CLUSTER
from busbar.exits import USAGE

_PREFIXES = ("load-balancer", "control-plane", "worker", "nfs-server")
# Reads the machine-ids again: a host may be another machine now.
_PREFLIGHT = "preflight-hosts"
# Steps beside those on the host: a server prepares for another machine, and taints are set by the API.
_NODES = ("control-plane-rejoin", "control-plane-nodes", "control-plane-taints")
_WITH_NODE = ("control-plane-", "worker-")
# A release that was uninstalled and is installed again may have the revision that it had.
_WAITS = ("gpu-operator-gpus", "network-operator-hcas")


def to_apply_again(state: Snapshot, hosts: Sequence[str]) -> list[str]:
    """The URNs of the resources that install `hosts`, for the engine to replace: that runs them again.

    A replacement of these uninstalls nothing: their removal is a resource of its own, which is not in the
    list. "cluster" adds the waits for what the charts bring. Raises StackError for a host that is not in the
    state.
    """
    urns = {events.name(urn): urn for urn in state.resources}
    installed = [name for name in urns if f"{name}-removal" in urns]
    if ALL in hosts:
        chosen = installed
    else:
        chosen = [name for host in hosts if host != CLUSTER for name in _resource(host, installed)]
    waits = [urns[name] for name in _WAITS if name in urns and {ALL, CLUSTER} & {*hosts}]
    if not chosen:
        return waits
    nodes = _NODES if any(name.startswith(_WITH_NODE) for name in chosen) else ()
    return [*(urns[name] for name in (_PREFLIGHT, *nodes, *chosen) if name in urns), *waits]


def broken_off(state: Snapshot, urns: Collection[str]) -> list[str]:
    """Those of `urns` that install a host of the stack: an earlier update failed there, or was killed.

    The engine compares with what it stored before that. With the former configuration it finds nothing to do.
    """
    known = {events.name(urn): urn for urn in state.resources}
    names = {events.name(urn) for urn in urns}
    return [urn for name, urn in known.items() if name in names and f"{name}-removal" in known]


def _resource(host: str, installed: Sequence[str]) -> list[str]:
    names = [f"{prefix}-{host}" for prefix in _PREFIXES if f"{prefix}-{host}" in installed]
    if not names:
        hosts = (
            name.removeprefix(f"{prefix}-")
            for name in installed
            for prefix in _PREFIXES
            if name.startswith(f"{prefix}-")
        )
        known = ", ".join(dict.fromkeys(hosts))
        fix = f"name some of {known}; {CLUSTER}; or {ALL}." if known else "leave the option out."
        raise StackError(f"--converge {host}: the stack has no such host. Fix: {fix}", exit_code=USAGE)
    return names
