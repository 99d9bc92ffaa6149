"""Steps that an update applies again: of `busbar up STACK --converge HOST`, and those that failed before."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from busbar.capability import capabilities
from busbar.cli.stack import events
from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.errors import StackError
from busbar.cli.stack.target import ALL, CLUSTER
from busbar.exits import USAGE

# The core's; those of a capability are in its door.
_STEPS = ("load-balancer", "control-plane", "worker", "nfs-server")
# Preflight reads the machine-ids again, because a host may be another machine now.
_PREFLIGHT, _PREFLIGHT_OF_OTHERS = "preflight-hosts", "-preflight"
# Steps that do not run on the host: a server prepares for another machine, and the API sets taints.
_NODES = ("control-plane-rejoin", "control-plane-nodes", "control-plane-taints")
_WITH_NODE = ("control-plane-", "worker-")
# A release that was uninstalled and is installed again may have the revision that it had.
_WAITS = ("gpu-operator-gpus", "network-operator-hcas")


def to_apply_again(state: Snapshot, hosts: Sequence[str]) -> list[str]:
    """The URNs of the resources that install `hosts`. The engine replaces them, which runs them again.

    Their replacement uninstalls nothing, because the removal of a host is a separate resource, which is not
    in the list. "cluster" adds the waits for what the charts bring. Raises StackError for a host that is not
    in the state.
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
    other = [name for name in urns if name.endswith(_PREFLIGHT_OF_OTHERS) and name not in installed]
    return [*(urns[name] for name in (_PREFLIGHT, *other, *nodes, *chosen) if name in urns), *waits]


def broken_off(state: Snapshot, urns: Collection[str]) -> list[str]:
    """The `urns` that install a host of the stack, where an earlier update failed or was killed.

    The engine compares with the state before that update, so with the former configuration it does nothing.
    """
    known = {events.name(urn): urn for urn in state.resources}
    names = {events.name(urn) for urn in urns}
    return [urn for name, urn in known.items() if name in names and f"{name}-removal" in known]


def _resource(host: str, installed: Sequence[str]) -> list[str]:
    steps = [*_STEPS, *(step for each in capabilities() for step in each.host_steps)]
    names = [f"{step}-{host}" for step in steps if f"{step}-{host}" in installed]
    if not names:
        hosts = (
            name.removeprefix(f"{step}-")
            for name in installed
            for step in steps
            if name.startswith(f"{step}-")
        )
        known = ", ".join(dict.fromkeys(hosts))
        fix = f"name some of {known}; {CLUSTER}; or {ALL}." if known else "leave the option out."
        raise StackError(f"--converge {host}: the stack has no such host. Fix: {fix}", exit_code=USAGE)
    return names
