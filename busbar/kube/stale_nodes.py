"""Drains and deletes the Nodes of workers that are not configured any more.

A Node counts if busbar has noted its machine, and if it is no server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter

from pydantic import Field

from busbar.exits import Failed
from busbar.kube import nodes
from busbar.kube.client import Api, ApiError
from busbar.kube.drain import CHANGE_SECONDS, DrainHook, Hooks, changed, no_hooks, wait_for_pods
from busbar.kube.nodes import CORDONED, SILENT, Node
from busbar.kube.wait import Clock, Deadline, ProgressCallback, TimedOut, wait_until
from busbar.models import StrictModel

REASON = "removed from the cluster"
READ_SECONDS = 60.0
DRAIN_SECONDS = 300.0
DELETE_SECONDS = 60.0
POLL_SECONDS = 3.0
AT_ONCE = 10
_conflict = attrgetter("conflict")


class StaleNodesSpec(StrictModel):
    """The JSON that `busbar remove nodes` reads on stdin."""

    workers: list[str] = Field(description="All workers of the configuration, by name.")
    folder: str = Field(description="Where it is noted which of the machines were silent.")


class NodesRemain(Failed):
    """Nodes that could not be deleted; the text names them and what the API said."""


def remove(
    api: Api, spec: StaleNodesSpec, clock: Clock, progress: ProgressCallback, hooks: Hooks = no_hooks
) -> dict[str, bool]:
    """The Nodes that were deleted, and whether their kubelets were silent. Safe to run again.

    Ten are drained at the same time, by schedulers first. A drain that takes longer than DRAIN_SECONDS, or
    whose machine died meanwhile, does not keep the Node. Raises ApiError, TimedOut (no Nodes could be read),
    and NodesRemain after all others are gone. On SIGTERM, the Nodes that are not deleted are uncordoned.
    """
    found, silent = wait_until(
        lambda: (nodes.read(api), nodes.silent(api)),
        Deadline(clock, READ_SECONDS),
        poll_seconds=POLL_SECONDS,
        progress=progress,
    )
    stale = list(stale_nodes(found, spec.workers))
    removal = _Removal(api, clock, progress, hooks, silent)
    for at in range(0, len(stale), AT_ONCE):
        removal.remove(stale[at : at + AT_ONCE], [node.machine for node in found])
    if removal.failed:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in removal.failed.items())
        raise NodesRemain(
            f"these Nodes could not be deleted: {reasons}. Fix: make the API answer, or run on a server: "
            f"k3s kubectl delete node {' '.join(removal.failed)}; then retry"
        )
    return {node.name: node.name in silent for node in stale}


def stale_nodes(found: Sequence[Node], workers: Sequence[str]) -> Iterator[Node]:
    """The Nodes of workers that left the configuration. K3s writes names of Nodes in lower case."""
    configured = {name.lower() for name in workers}
    for node in found:
        if node.machine and not node.is_server and node.name.lower() not in configured:
            yield node


@dataclass
class _Removal:
    """Drains Nodes side by side, and deletes each when nothing runs there any more.

    `silent`: Nodes whose kubelets are. `failed`: why Nodes could not be deleted.
    """

    api: Api
    clock: Clock
    progress: ProgressCallback
    hooks: Hooks
    silent: set[str]
    out: dict[str, Sequence[DrainHook]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def remove(self, batch: Sequence[Node], machines: Sequence[str]) -> None:
        """Remove Nodes; `machines`: those of all Nodes. Nothing runs on a Node whose machine is gone."""
        try:
            for node in batch:
                if machines.count(node.machine) > 1:
                    self.progress(f"the machine of Node {node.name} has another Node now; nothing to drain")
                    self._delete(node.name)
                elif not node.ready or node.name in self.silent:
                    self.progress(SILENT.format(node.name))
                    self._delete(node.name)
                else:
                    self.progress(f"{node.name} is no longer configured: draining and deleting its Node")
                    changed(partial(self._take_out, node.name), self.clock, self.progress)
            self._drain()
        finally:
            for name in sorted(self.out):
                self._put_back(name)
            self.out.clear()

    def _take_out(self, name: str) -> bool:
        self.out[name] = self.hooks(name, REASON)
        for hook in self.out[name]:
            hook.begin()
        return nodes.take_out(self.api, name, CORDONED, REASON, "an update", datetime.now(UTC))

    def _put_back(self, name: str) -> None:
        try:
            put_back = partial(nodes.put_back, self.api, name, CORDONED)
            wait_until(put_back, Deadline(self.clock, CHANGE_SECONDS), poll_seconds=1, retry_on=_conflict)
            for hook in self.out[name]:
                hook.end()
        except (ApiError, TimedOut) as error:
            self.progress(f"uncordoning Node {name} failed: {error}. Fix: kubectl uncordon {name}")

    def _drain(self) -> None:
        deadline = Deadline(self.clock, DRAIN_SECONDS)
        left = wait_for_pods(self.api, {**self.out}, deadline, self.progress, left=self._delete)
        for name, keeps in left.items():
            waited = f"drain of {name} timed out after {DRAIN_SECONDS:.0f} s"
            self.progress(f"{waited}: {keeps}; deleting the Node anyway")
            self._delete(name)

    def _delete(self, name: str, silent: bool = False) -> None:
        self.silent |= {name} if silent else set()
        try:
            nodes.delete(self.api, name, Deadline(self.clock, DELETE_SECONDS))
            self.out.pop(name, None)
        except (ApiError, TimedOut) as error:
            self.failed[name] = str(error)
