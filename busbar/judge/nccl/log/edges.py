"""Channel edges: NCCL's messages about the transport between two ranks.

    Channel 07/0 : 6[6] -> 15[7] [receive] via NET/IBext/3/GDRDMA

The part before `via` is the link (channel, ranks, direction), the part behind it the transport.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from busbar.judge.nccl.log import patterns as p
from busbar.judge.nccl.log.records import LogLine

Kind = Literal["NET", "COLLNET", "P2P", "SHM"]
MAX_KNOWN = 128  # letters of a transport that is remembered


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
    """The number of printed edges with one label, and the first line that shows one."""

    transport: Transport
    first: LogLine
    count: int = 0


@dataclass(slots=True)  # one per line, and a frozen one takes three times as long to make
class Edge:
    """One end of a link, as printed in `link`.

    `direction` is send, receive or "" (inside a host), `target` is -1 for CollNet.
    """

    transport: Transport
    direction: str
    link: str
    channel: int
    connection: int
    source: int
    target: int


def read_edge(body: str) -> Edge | None:
    """The edge that a whole message states, or None."""
    match = p.EDGE.fullmatch(body)
    if match is None:
        return None
    text = match["transport"]
    transport = _known_transport(text) if len(text) < MAX_KNOWN else read_transport(text)
    return None if transport is None else Edge(transport, match["direction"] or "", *link(match))


def link(match: re.Match[str]) -> tuple[str, int, int, int, int]:
    """The link of a match of EDGE: as printed, then its channel, connection, source and target."""
    text, channel, connection, source, target = match.group(
        "link", "channel", "connection", "source", "target"
    )
    return text, int(channel), int(connection or "0"), int(source), int(target or "-1")


def read_transport(text: str) -> Transport | None:
    """The transport that TEXT states; None if it is not in a known form."""
    match = p.TRANSPORT.fullmatch(text)
    if match is None:
        return None
    if match["net"] is not None:
        kind: Kind = "COLLNET" if match["net"] == "COLLNET" else "NET"
        name, gdr = match["name"], match["gdr"] is not None
        label = f"{kind}/{name}/N{match['gdr'] or ''}{match['pci'] or ''}{match['shared'] or ''}"
        return Transport(kind, name, int(match["dev"]), gdr, label)
    if match["p2p"] is not None:
        return Transport("P2P", match["p2p"].removeprefix("P2P/"), None, False, match["p2p"])
    return Transport("SHM", match["shm"], None, False, match["shm"])


_known_transport = lru_cache(maxsize=1024)(read_transport)
