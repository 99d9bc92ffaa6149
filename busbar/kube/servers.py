"""Asks through the API whether the servers of a cluster serve: an update without changes uses no SSH."""

from __future__ import annotations

from collections.abc import Iterable

from busbar.kube import nodes
from busbar.kube.client import Api, ApiError, RestApi
from busbar.kube.nodes import NODES, Node
from busbar.kube.wait import Clock, Deadline, Pending, SystemClock, TimedOut, wait_until

# K3s on the leader of etcd looks at all members every 15 s, and writes the condition EtcdIsVoter of their
# Nodes then (k3s-io/k3s pkg/etcd/etcd.go manageLearners): that of a restarted server may still be False.
DEADLINE_SECONDS = 60
POLL_SECONDS = 2
VOTER = "EtcdIsVoter"


def ask(kubeconfig: str, servers: Iterable[str]) -> str:
    """The same as `problems`, with the cluster of a kubeconfig. Raises ValueError where that is unusable."""
    return problems(RestApi(kubeconfig), tuple(servers), SystemClock())


def problems(api: Api, servers: Iterable[str], clock: Clock) -> str:
    """Which servers are not Ready and voters in etcd within 60 s, and why; empty where all are.

    Raises ApiError, and TimedOut where the API is not responding.
    """

    def all_serve() -> bool | Pending:
        found = {node.name: node for node in nodes.read(api)}
        wrong = {name: _problem(api, found.get(name.lower())) for name in servers}
        text = "; ".join(f"{name}: {problem}" for name, problem in wrong.items() if problem)
        return Pending(text) if text else True

    try:
        wait_until(all_serve, Deadline(clock, DEADLINE_SECONDS), poll_seconds=POLL_SECONDS)
    except TimedOut as timeout:
        if timeout.error:
            raise
        return timeout.state
    return ""


def _problem(api: Api, node: Node | None) -> str:
    """Why the server does not serve; empty where it does."""
    if node is None:
        return "the cluster has no Node with this name"
    if not node.ready:
        return "the Node is not Ready"
    if VOTER not in node.conditions:
        return f"the Node's condition {VOTER} is not True"
    # Both conditions may be old. The API server of a server asks the etcd of its own host only, and a member
    # without a vote refuses that (as server_answers in host/k3s-etcd.sh). Another API server passes this on.
    try:
        answer = b"".join(api.stream(f"{NODES}/https:{node.name}:6443/proxy/readyz"))
    except ApiError as error:
        if error.status is None:
            raise
        return f"its API server, or the etcd that it asks there, is not ready: {error}"
    return "" if answer == b"ok" else f"/readyz of its API server returned {answer[:80]!r}, expected ok"
