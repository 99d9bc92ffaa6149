"""The current state of the workers: hardware by preflight's script, Nodes by the API; changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from busbar.hosts.finding import Finding
from busbar.hosts.inventory import Inventory
from busbar.kube.gpus import count
from busbar.kube.nodes import Node
from busbar.manifests.scheduling import GPU_RESOURCE
from busbar.operations.verify import CLUSTER, ClusterState, UnknownState, compare
from busbar.preflight.spec import Spec
from busbar.preflight.survey import Outcome, survey
from busbar.text import counted

READY = "Ready"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Workers:
    """Preflight's result for the workers of `spec`; `nodes`: worker name -> state of its Node (`states`).

    `ready`: the states of Nodes that can start jobs.
    """

    spec: Spec
    outcome: Outcome
    nodes: Mapping[str, str]
    ready: Collection[str] = (READY,)

    @property
    def are_well(self) -> bool:
        """Whether no worker has an error and every Node is ready, without foreign taints or conditions.

        Nodes in quarantine do not count.
        """
        usable = {state for name, state in self.nodes.items() if name not in self.spec.quarantined}
        return not self.outcome.errors and usable <= {*self.ready}

    def data(self) -> dict[str, Any]:
        """As plain data: `{"well", "nodes": [...], "findings": [...]}`.

        A node has name, pool, node (its state) and facts; a finding host, level, what and fix.
        """
        rows = [
            {
                "name": host.name,
                "pool": host.pool,
                "node": self.nodes[host.name],
                "facts": self.outcome.facts(host.name),
            }
            for host in self.spec.hosts
        ]
        findings = [asdict(each) for each in self.outcome.findings]
        return {"well": self.are_well, "nodes": rows, "findings": findings}


async def inspect(spec: Spec, inventory: Inventory, state: Callable[[], ClusterState]) -> Workers:
    """Query all workers and the cluster. `state` reads the cluster, or raises UnknownState.

    Fails closed: a worker that is not responding has an error, a Node that cannot be read is unknown.
    Raises ValueError if the SSH key or the ssh-agent cannot be used.
    """
    workers = spec.model_copy(update={"hosts": tuple(each for each in spec.hosts if each.role == "worker")})
    reading = asyncio.create_task(asyncio.to_thread(state))
    outcome = await survey(workers, {})
    try:
        nodes = states(inventory, await reading, outcome)
    except UnknownState as error:
        nodes = {host.name: UNKNOWN for host in workers.hosts}
        problem = Finding(CLUSTER, "error", f"Nodes cannot be read: {error}", "busbar verify tells more")
        outcome = replace(outcome, findings=[*outcome.findings, problem])
    return Workers(workers, outcome, nodes)


def states(inventory: Inventory, state: ClusterState, outcome: Outcome) -> dict[str, str]:
    """Worker -> Ready, or the reason of its quarantine, conditions, differences to the configuration and to
    what OUTCOME counted on the host, and what capabilities say of it."""
    held = {name: f"in quarantine: {reason}" for name, reason in inventory.quarantine.items()}
    found = {host.name: [held[host.name]] if host.name in held else [] for host in inventory.workers}
    for drift in compare(inventory, state, ()):
        if drift.host in found:
            found[drift.host].append(drift.what)
    # A lost device is an error of its host.
    records = {**outcome.records, **outcome.failed}
    for name, texts in found.items():
        if name in state.nodes and name in records:
            texts += _miscounted(inventory, state.nodes[name], records[name].facts)
    for name, texts in found.items():
        if why := state.of_capabilities.get(name.lower()):
            texts.append(why)
    return {name: "; ".join(texts) or READY for name, texts in found.items()}


def _miscounted(inventory: Inventory, node: Node, facts: Mapping[str, Any]) -> Iterator[str]:
    """Numbers of devices that differ: a plugin may not see a device that is lost, or whose driver is late."""
    network, counts = inventory.cluster.network_operator, list[tuple[str, int, str]]()
    # A host whose nvidia-smi fails has an error of its own, and a number of GPUs that is not known.
    if gpus := facts.get("gpus"):
        counts.append((GPU_RESOURCE, gpus, str(gpus)))
    if network.enabled and "rails" in facts:
        rails = len(facts["rails"])
        counts.append((network.resource, rails, counted(rails, "rail")))
    for resource, on_host, text in counts:
        if (offered := count(dict(node.allocatable), resource)) != on_host:
            yield f"{resource}: {offered} allocatable, {text} on the host"
