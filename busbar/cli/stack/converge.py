"""Steps that an update applies again: of `busbar up STACK --converge HOST`, and those that failed before."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from busbar import names
from busbar.cli.stack import events
from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.target import ALL, CHARTS
from busbar.exits import Misuse

# Preflight reads the machine-ids again, because a host may be another machine now.
_PREFLIGHT = ("-preflight", "-preflight-hosts")
# Steps that do not run on the host: a server prepares for another machine, and the API sets taints.
_NODES = ("-rejoin", "-nodes", "-taints")
_WITH_NODE = (names.CONTROL_PLANE, names.WORKER)
# A release that was uninstalled and is installed again may have the revision that it had.
_WAITS = (f"{names.GPU_OPERATOR}-gpus", f"{names.NETWORK_OPERATOR}-hcas")


def to_apply_again(state: Snapshot, hosts: Sequence[str]) -> list[str]:
    """The URNs of the resources that install `hosts`. The engine replaces them, which runs them again.

    Their replacement uninstalls nothing, because the removal of a host is a separate resource, which is not
    in the list. "cluster" adds the waits for what the charts bring. Raises Misuse for a host that is not
    in the state.
    """
    urns = {events.name(urn): urn for urn in state.resources}
    installed = names.installations(urns)
    if ALL in hosts:
        chosen = installed
    else:
        chosen = [name for host in hosts if host != CHARTS for name in _resources(host, installed)]
    waits = [name for name in urns if name.endswith(_WAITS)] if {ALL, CHARTS} & {*hosts} else []
    before: list[str] = []
    if chosen:
        before = [name for name in urns if name.endswith(_PREFLIGHT)]
    if any(names.component_of(name).endswith(_WITH_NODE) for name in chosen):
        before += [name for step in _NODES for name in urns if name.endswith(f"-{names.CONTROL_PLANE}{step}")]
    return [urns[name] for name in (*before, *chosen, *waits)]


def broken_off(state: Snapshot, urns: Collection[str]) -> list[str]:
    """The `urns` that install a host of the stack, where an earlier update failed or was killed.

    The engine compares with the state before that update, so with the former configuration it does nothing.
    """
    known = {events.name(urn): urn for urn in state.resources}
    failed = {events.name(urn) for urn in urns}
    return [known[name] for name in names.installations(known) if name in failed]


def _resources(host: str, installed: Sequence[str]) -> list[str]:
    found = [name for name in installed if names.host_of(name) == host]
    if not found:
        known = ", ".join(dict.fromkeys(map(names.host_of, installed)))
        fix = f"name some of {known}; {CHARTS}; or {ALL}." if known else "leave the option out."
        raise Misuse(f"--converge {host}: the stack has no such host. Fix: {fix}")
    return found
