"""`busbar remove nodes` for hosts that are folders: their Nodes are lines NAME|MACHINE| of a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from busbar.kube.client import JsonObject
from busbar.kube.drain import StaleNodesSpec, remove_stale_nodes
from busbar.kube.nodes import MACHINE, NODES
from busbar.kube.wait import SystemClock
from tests.support.kube_cluster import Cluster, not_found


class Folders(Cluster):
    """What is done to a Node is a line of the file `log`."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._file, self._log = root / "nodes", root / "log"

    def list(self, path: str, **query: str) -> list[JsonObject]:
        conditions = [{"type": "Ready", "status": "True"}]
        return [
            {
                "metadata": {"name": name, "annotations": {MACHINE: machine}, "resourceVersion": "1"},
                "status": {"conditions": conditions},
            }
            for name, machine in self._nodes().items()
            if path == NODES
        ]

    def get(self, path: str, **query: str) -> JsonObject:
        found = {f"{NODES}/{node['metadata']['name']}": node for node in self.list(NODES)}
        if path not in found:
            raise not_found(path)
        return found[path]

    def merge(self, path: str, body: Any) -> JsonObject:
        self._note(f"{path.rpartition('/')[2]} drained")
        return {}

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        left = self._nodes()
        name = path.rpartition("/")[2]
        if left.pop(name, None) is None:
            raise not_found(path)
        self._file.write_text("".join(f"{each}|{machine}|\n" for each, machine in left.items()))
        self._note(f"{name} Node deleted")
        return {}

    def _nodes(self) -> dict[str, str]:
        lines = (line.split("|") for line in self._file.read_text().splitlines())
        return {name: machine for name, machine, _ in lines}

    def _note(self, what: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{what}\n")


if __name__ == "__main__":
    spec = StaleNodesSpec.model_validate_json(sys.stdin.read())
    remove_stale_nodes(Folders(Path(sys.argv[1])), spec, SystemClock(), print)
