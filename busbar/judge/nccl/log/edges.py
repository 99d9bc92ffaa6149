"""Channel edges: NCCL's messages about the transport between two ranks.

    Channel 07/0 : 6[6] -> 15[7] [receive] via NET/IBext/3/GDRDMA

The part before `via` is the link (channel, ranks, direction), the part behind it the transport.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from busbar.judge.nccl.log import patterns as p
from busbar.judge.nccl.log.records import LogLine

MAX_LINKS = 400_000
MAX_ENDS = 65_536
Process = tuple[str, int]  # host and pid; "" and 0 where they were not printed
End = tuple[Process, int]  # a process and its own rank
RANK_BITS = 22
RANK_MASK = (1 << RANK_BITS) - 1


@dataclass
class Links:
    """Links over a network, as printed. `difference` is 0 where both ends named the same links."""

    difference: int = 0
    # (channel, source, target) of connection 0 as one number
    sent: set[int] = field(default_factory=set)
    received: set[int] = field(default_factory=set)
    ends: set[End] = field(default_factory=set)  # of each message
    balance: Counter[int] = field(default_factory=Counter)  # device -> edges sent, less those received
    overflow: bool = False

    def add(self, process: Process, link: bytes, key: int, sent: bool, *, first: bool) -> None:
        """Add one end of a LINK as PROCESS printed it, with its KEY (`pack`).

        Both ends print the same LINK. FIRST: it is of connection 0.
        """
        end = process, (key >> RANK_BITS if sent else key) & RANK_MASK
        if end not in self.ends:
            self.overflow |= len(self.ends) >= MAX_ENDS
            if not self.overflow:
                self.ends.add(end)
        self.difference += hash(link) if sent else -hash(link)
        if not first:
            return
        mine = self.sent if sent else self.received
        mine.add(key)
        if len(mine) > MAX_LINKS:
            self.overflow = True
            mine.clear()

    @property
    def seen(self) -> set[int]:
        """Links that the sender or the receiver printed."""
        return self.sent | self.received

    def both_ways(self, channel: int, source: int, target: int) -> bool:
        """Whether both sender and receiver printed the link."""
        key = pack(channel, source, target)
        return key in self.sent and key in self.received

    def merge(self, other: Links) -> None:
        """Add everything in OTHER."""
        self.difference += other.difference
        self.sent |= other.sent
        self.received |= other.received
        self.ends |= other.ends
        self.balance.update(other.balance)
        self.overflow |= other.overflow


def pack(channel: int, source: int, target: int) -> int:
    """One number for a link: smaller in memory than a tuple."""
    return (channel << 2 * RANK_BITS) | ((source & RANK_MASK) << RANK_BITS) | (target & RANK_MASK)


def unpack(keys: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """Channel, source, target of each of KEYS."""
    return ((key >> 2 * RANK_BITS, (key >> RANK_BITS) & RANK_MASK, key & RANK_MASK) for key in keys)


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
    """The number of printed edges with one label, and the first line that shows one."""

    transport: Transport
    first: LogLine
    count: int = 0


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
