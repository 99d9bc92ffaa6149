"""Channel edges: what a message of NCCL says about the transport between two ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from busbar.nccl.log import patterns as p
from busbar.nccl.log.records import LogLine

Kind = Literal["NET", "COLLNET", "P2P", "SHM"]


@dataclass(frozen=True, slots=True)
class Edge:
    """One end of a channel: `NET/IBext/3/GDRDMA` is kind NET, name IBext, device 3, gdr True.

    `label` is the same without the device: NET/IBext/N/GDRDMA. `direction` is send, receive or "".
    """

    kind: Kind
    name: str
    device: int | None
    gdr: bool
    label: str
    direction: str = ""


@dataclass(slots=True)
class EdgeCounts:
    """How often edges of one label were printed, and the first line that shows one."""

    edge: Edge
    first: LogLine
    count: int = 0


def read_edge(body: str) -> Edge | None:
    """The edge that a message's whole text states; None where it states none."""
    match = p.EDGE.fullmatch(body)
    if match is None:
        return None
    if match["net"] is not None:
        kind: Kind = "COLLNET" if match["net"] == "COLLNET" else "NET"
        name, gdr = match["name"], match["gdr"] is not None
        label = f"{kind}/{name}/N{match['gdr'] or ''}{match['pci'] or ''}{match['shared'] or ''}"
        return Edge(kind, name, int(match["dev"][:9]), gdr, label, match["direction"] or "")
    if match["p2p"] is not None:
        return Edge("P2P", match["p2p"].removeprefix("P2P/"), None, False, match["p2p"])
    return Edge("SHM", match["shm"], None, False, match["shm"])
