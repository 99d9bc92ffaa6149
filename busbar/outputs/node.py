"""One host of a cluster, and the text in which the output `nodes` carries all hosts of one role.

Pulumi prints every leaf of an output on a line of its own, so one text per role keeps the outputs of a large
cluster short: "gpu-1 10.0.0.21 gpus=8 rails=8, gpu-2 10.0.0.22 gpus=8 rails=8".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """A host of the cluster. `role` is lb, server, worker or nfs; `gpus` and `rails` were found on it."""

    name: str
    role: str
    address: str
    gpus: int
    rails: int


def format_nodes(nodes: Iterable[Node]) -> dict[str, str]:
    """Role -> its nodes as one text, in the given order; a count of 0 is left out."""
    texts: dict[str, list[str]] = {}
    for node in nodes:
        counts = [f"{key}={n}" for key, n in (("gpus", node.gpus), ("rails", node.rails)) if n]
        texts.setdefault(node.role, []).append(" ".join([node.name, node.address, *counts]))
    return {role: ", ".join(parts) for role, parts in texts.items()}


def parse_nodes(role: str, text: str) -> list[Node]:
    """The nodes of one role, from the text that `format_nodes` wrote. Raises ValueError for any other."""
    return [_parse_node(role, part) for part in text.split(", ")]


def _parse_node(role: str, text: str) -> Node:
    try:
        name, address, *counts = text.split()
        found = {key: int(value) for key, value in (count.split("=") for count in counts)}
        return Node(name, role, address, found.pop("gpus", 0), found.pop("rails", 0), **found)
    except (ValueError, TypeError):
        raise ValueError(f"{text!r}: NAME ADDRESS [gpus=N] [rails=N] is expected") from None
