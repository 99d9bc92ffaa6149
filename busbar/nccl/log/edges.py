"""Channel edges: what a message says about one, and what equal ones add up to when they are only counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from busbar.nccl.log import patterns as p


@dataclass(frozen=True, slots=True)
class Edge:
    """One channel end: `NET/IBext/3/GDRDMA` is kind NET, name IBext, device 3, gdr True."""

    kind: str
    name: str
    device: int | None
    gdr: bool
    label: str
    direction: str = ""


def edge_of(body: str) -> Edge | None:
    """Read the transport of a channel out of a message's text; None where there is none."""
    match = p.EDGE.match(body)
    if match is None:
        return None
    if match["net"] is not None:
        kind, name, gdr = match["net"], match["name"], match["gdr"] is not None
        label = f"{kind}/{name}/N{match['gdr'] or ''}{match['pci'] or ''}{match['shared'] or ''}"
        way = "send" if "[send] via" in body else "receive" if "[receive] via" in body else ""
        return Edge(kind, name, int(match["dev"][:9]), gdr, label, way)
    if match["p2p"] is not None:
        return Edge("P2P", match["p2p"].removeprefix("P2P/"), None, False, match["p2p"])
    return Edge("SHM", match["shm"], None, False, match["shm"])


@dataclass
class Known:
    """An edge as some lines end: what it says, and its first line."""

    edge: Edge
    host: str
    line: int
    text: str


Key = tuple[str, int | None, str]  # label, device, direction


def key_of(edge: Edge) -> Key:
    """What is counted apart."""
    return (edge.label, edge.device if edge.kind == "NET" else None, edge.direction)


@dataclass
class Bulk:
    """What was counted without being read; Evidence.merge adds it."""

    known: dict[Key, Known] = field(default_factory=dict)
    counts: Counter[Key] = field(default_factory=Counter)
    pairs: dict[bytes, set[int]] = field(default_factory=dict)  # host -> devices of its NET edges
    hosts: set[bytes] = field(default_factory=set)
    messages: int = 0
