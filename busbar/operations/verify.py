"""Compares hosts and cluster with the configuration and the last update; changes nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from busbar.config import Cluster
from busbar.hosts.host import Host
from busbar.hosts.inventory import Inventory
from busbar.hosts.login import Login
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
from busbar.manifests.operators import Operator
from busbar.preflight.host_checks import clock_error

CONCURRENT = 64
SCRIPT_SECONDS = 90
CLUSTER = "cluster"
_DEPLOYED = "deployed"


@dataclass(frozen=True)
class Drift:
    """One difference. `host` is a host's name, or "cluster". `kind` "unknown": it could not be verified."""

    host: str
    what: str
    kind: Literal["drift", "unknown"] = "drift"


@dataclass(frozen=True)
class ClusterState:
    """What a server reported: readiness, labels, taints per Node, and whether an update has cordoned it; the
    newest status per Helm release."""

    nodes: Mapping[str, Mapping[str, Any]]
    releases: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> ClusterState | None:
        """From the facts of host/verify.sh; None if its API did not answer. Raises ValueError."""
        nodes, releases = facts.get("nodes"), facts.get("releases")
        if nodes is None or releases is None:
            return None
        found = {}
        for line in str(nodes).splitlines():
            name, ready, cordoned, labels, taints = line.split("|", 4)
            found[name] = {
                "ready": ready == "True",
                "cordoned": bool(cordoned),
                "labels": json.loads(labels or "{}"),
                "taints": json.loads(taints or "[]"),
            }
        newest: dict[tuple[str, str], tuple[int, str]] = {}
        for line in str(releases).splitlines():
            namespace, name, revision, status = line.split("|")
            key = namespace, name
            newest[key] = max(newest.get(key, (0, "")), (int(revision), status))
        return cls(found, {key: status for key, (_, status) in newest.items()})


async def verify(cluster: Cluster, login: Login, operators: Sequence[Operator]) -> list[Drift]:
    """All differences, in the order of the hosts, then those of the cluster. Empty: nothing differs.

    `operators`: those whose releases are expected. Fails closed: a host that does not answer, or a cluster
    that no server reports on, is in the list. Raises ValueError if the SSH key cannot be used, ScriptError if
    the bastion cannot be reached.
    """
    inventory = Inventory.of(cluster)
    limit = asyncio.Semaphore(CONCURRENT)
    async with Hosts.open(login, lambda _: None) as hosts:

        async def ask(host: Host) -> Mapping[str, Any] | Drift:
            values = {"ROLE": host.role, "CLUSTER": "true" if host.role == "server" else "false"}
            if host == inventory.nfs_server:
                values["NFS"] = "true"
            async with limit:
                try:
                    before = time.time()
                    facts = await hosts.run(
                        host,
                        "verify",
                        values,
                        seconds=SCRIPT_SECONDS,
                    )
                    wrong = clock_error(float(facts["epoch"]), (before, time.time()))
                    return {**facts, "drift": [*facts["drift"], *([wrong] if wrong else [])]}
                except UnreachableError as error:
                    return Drift(host.name, error.finding.what, "unknown")
                except ScriptError as error:
                    return Drift(host.name, str(error), "unknown")

        answers = await asyncio.gather(*(ask(host) for host in inventory.hosts))
    found: list[Drift] = []
    state: ClusterState | None = None
    for host, answer in zip(inventory.hosts, answers, strict=True):
        if isinstance(answer, Drift):
            found.append(answer)
            continue
        found += [Drift(host.name, str(what)) for what in answer["drift"]]
        state = state or ClusterState.of(answer)
    if state is None:
        return [*found, Drift(CLUSTER, "no server reports Nodes and Helm releases", "unknown")]
    return [*found, *compare(inventory, state, operators)]


def compare(inventory: Inventory, state: ClusterState, operators: Sequence[Operator]) -> list[Drift]:
    """Differences between the configuration and what a server reported."""
    found: list[Drift] = []
    hosts = (*inventory.servers, *inventory.workers)
    for host in hosts:
        node = state.nodes.get(host.name)
        if node is None:
            found.append(Drift(host.name, "has no Node in the cluster"))
            continue
        if not node["ready"]:
            found.append(Drift(host.name, "its Node is not Ready"))
        if node["cordoned"]:
            found.append(Drift(host.name, "its Node is cordoned by an update that did not finish there"))
        found += _labels_and_taints(inventory, host, node)
    for name in sorted(set(state.nodes) - {host.name for host in hosts}):
        found.append(Drift(CLUSTER, f"Node {name} is not in the configuration"))
    for operator in operators:
        status = state.releases.get((operator.namespace, operator.release))
        if status != _DEPLOYED:
            what = "is not installed" if status is None else f"is {status}, expected {_DEPLOYED}"
            found.append(Drift(CLUSTER, f"Helm release {operator.namespace}/{operator.release} {what}"))
    return found


def _labels_and_taints(inventory: Inventory, host: Host, node: Mapping[str, Any]) -> list[Drift]:
    if host.pool is None:
        return []
    found = []
    pool = inventory.cluster.pools[host.pool]
    for key, value in sorted(pool.labels.items()):
        actual = node["labels"].get(key)
        if actual != value:
            got = "is missing" if actual is None else f"is {actual}, expected {value}"
            found.append(Drift(host.name, f"label {key} {got}"))
    actual_taints = {(each["key"], each.get("value", ""), each["effect"]) for each in node["taints"]}
    for taint in pool.taints:
        if (taint.key, taint.value, taint.effect) not in actual_taints:
            found.append(Drift(host.name, f"taint {taint.key}={taint.value}:{taint.effect} is missing"))
    return found


def as_json(stack: str, found: Sequence[Drift]) -> str:
    """`{"stack", "verified", "drift": [{"host", "what", "kind"}]}`; `verified` is true if nothing differs."""
    return json.dumps({"stack": stack, "verified": not found, "drift": [asdict(each) for each in found]})
