"""From what a diagnosis has found to quarantines in the stack file, and back."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from busbar.config.cluster import AnyCluster
from busbar.exits import Failed
from busbar.fabric.diagnosis.findings import Findings
from busbar.fabric.diagnosis.stages import State
from busbar.fabric.localise.rounds import PARTNERS
from busbar.hosts.inventory import Inventory

# How the reason of a quarantine by this command begins.
OURS = "busbar diagnose "
# Healthy nodes that the nodes of a release may meet: more than three, since one of them may be slow too.
CANDIDATES = 8


class LimitExceeded(Failed):
    """More nodes are named than one diagnosis may put in quarantine; the text says which, and what to do."""


def reasons(found: Findings, cluster: AnyCluster) -> dict[str, str]:
    """Node -> the reason of its quarantine. Not those of which it is only known that some of them are slow,
    nor those that are in quarantine. Raises LimitExceeded."""
    held, pool = cluster.quarantine, found.pool
    texts: dict[str, list[str]] = {}
    for row in found.rows:
        if len(row.nodes) == 1 and row.nodes[0] not in held:
            texts.setdefault(row.nodes[0], []).append(row.summary)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    named = {node: f"{OURS}{date}: {', '.join(slow)}"[:200] for node, slow in texts.items()}
    workers = cluster.workers_of(pool)
    left = sum(worker.name not in held for worker in workers) - 1
    hardware = cluster.pools[pool]
    limit = min(hardware.quarantined_at_once(len(workers)), left)
    if len(named) > limit:
        key = "quarantine_limit" in type(hardware).model_fields
        fix = f"raise pools.{pool}.quarantine_limit, or " if key else ""
        raise LimitExceeded(
            f"{len(named)} nodes are named ({', '.join(named)}), and at most {limit} of the {len(workers)} "
            f"workers of pool {pool} may be put in quarantine at once. No changes made. Fix: look for "
            f"what they share first; {fix}edit the file by hand"
        )
    return named


def to_release(inventory: Inventory, pool: str, nodes: Sequence[str] | None) -> list[str]:
    """The workers in quarantine that a release is about: of `nodes`, else those put there by a diagnosis."""
    held = [host.name for host in inventory.workers_of(pool) if host.name in inventory.quarantine]
    if nodes is not None:
        return [name for name in held if name in nodes]
    return [name for name in held if inventory.quarantine[name].startswith(OURS)]


def with_partners(inventory: Inventory, pool: str, released: Sequence[str]) -> list[str]:
    """These nodes, and workers that are not in quarantine to judge them, of their own rail groups first."""
    places = {each.name: each.topology.rail_group for each in inventory.cluster.hosts.workers}
    own = {places[name] for name in released}
    others = sorted(
        (host.name for host in inventory.usable_of(pool)), key=lambda name: places[name] not in own
    )
    return [*released, *others[: CANDIDATES + len(released)]]


def why_not(state: State, found: Findings, node: str) -> str:
    """Why the quarantine of a node goes on; "" where it may end: good with three healthy partners."""
    if node in state.absent:
        return f"it was not measured: {state.absent[node]}"
    if rows := [row.summary for row in found.rows if node in row.nodes]:
        return f"it is slow: {', '.join(rows)}"
    partners = _partners(state, node, found.healthy)
    if len(partners) < PARTNERS:
        return f"it ran with {len(partners)} healthy partners, {PARTNERS} are needed"
    return "" if node in found.healthy else "too few of its runs were good"


def _partners(state: State, node: str, healthy: Collection[str]) -> set[str]:
    pairs = (
        group for group, busbw, _ in state.results if busbw and len(group.nodes) == 2 and group.stage == "B"
    )
    return {group.partner(node) for group in pairs if node in group.nodes} & {*healthy}
