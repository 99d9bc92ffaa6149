"""Channel edges: what a message of NCCL says about the transport between two ranks.

    Channel 07/0 : 6[6] -> 15[7] [receive] via NET/IBext/3/GDRDMA

The part before `via` is the link (channel, ranks, direction), the part behind it the transport.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from busbar.nccl.log import patterns as p
from busbar.nccl.log.records import LogLine

VIA = " via "
Kind = Literal["NET", "COLLNET", "P2P", "SHM"]


@dataclass(frozen=True, slots=True)
class Transport:
    """The transport of an edge: `NET/IBext/3/GDRDMA` is kind NET, name IBext, device 3, gdr True.

    `label` is the same without the device: NET/IBext/N/GDRDMA.
    """

    kind: Kind
    name: str
    device: int | None
    gdr: bool
    label: str


@dataclass(slots=True)
class EdgeCounts:
    """How often edges of one label were printed, and the first line that shows one."""

    transport: Transport
    first: LogLine
    count: int = 0


def read_edge(body: str) -> tuple[Transport, str] | None:
    """Transport and direction (send, receive, "") of the edge that a whole message states, or None."""
    link, via, text = body.rpartition(VIA)
    match = p.LINK.fullmatch(link) if via else None
    if match is None:
        return None
    transport = read_transport(text)
    return None if transport is None else (transport, match[1] or "")


def read_transport(text: str) -> Transport | None:
    """The transport that TEXT is; None where it is not one in a known form."""
    match = p.TRANSPORT.fullmatch(text)
    if match is None:
        return None
    if match["net"] is not None:
        kind: Kind = "COLLNET" if match["net"] == "COLLNET" else "NET"
        name, gdr = match["name"], match["gdr"] is not None
        label = f"{kind}/{name}/N{match['gdr'] or ''}{match['pci'] or ''}{match['shared'] or ''}"
        return Transport(kind, name, int(match["dev"][:9]), gdr, label)
    if match["p2p"] is not None:
        return Transport("P2P", match["p2p"].removeprefix("P2P/"), None, False, match["p2p"])
    return Transport("SHM", match["shm"], None, False, match["shm"])
