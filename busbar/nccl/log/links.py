"""Which links between hosts were printed, and by whom: each by its sender and by its receiver.

Only what is needed to compare both ends is kept: a sum over all links, and one entry for each link of a
collective (connection 0), since the number of those is bounded by channels and hosts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_LINKS = 400_000
MAX_ENDS = 65_536
SENT, RECEIVED = 1, 2
RANK_BITS = 22
RANK_MASK = (1 << RANK_BITS) - 1


@dataclass
class Links:
    """Links over a network, as printed. `difference` is 0 where both ends named the same links."""

    difference: int = 0
    # (channel, source, target) of connection 0 as one number -> SENT | RECEIVED
    seen: dict[int, int] = field(default_factory=dict)
    ends: set[tuple[str, int]] = field(default_factory=set)  # host, own rank of each message
    overflow: bool = False

    def end(self, host: str, rank: int) -> None:
        """A process on HOST printed an edge of its own RANK."""
        if (host, rank) not in self.ends:
            self.overflow |= len(self.ends) >= MAX_ENDS
            if not self.overflow:
                self.ends.add((host, rank))

    def add(self, text: bytes, channel: int, connection: int, source: int, target: int, sent: bool) -> None:
        """Take one end of a link; TEXT is the link as printed, alike at both ends."""
        link = hash(text)
        self.difference += link if sent else -link
        if connection == 0:
            key = (channel << 2 * RANK_BITS) | ((source & RANK_MASK) << RANK_BITS) | (target & RANK_MASK)
            ways = self.seen.get(key, 0)
            if ways == 0 and len(self.seen) >= MAX_LINKS:
                self.overflow = True
                return
            self.seen[key] = ways | (SENT if sent else RECEIVED)

    def both_ways(self, channel: int, source: int, target: int) -> bool:
        """Whether sender and receiver printed the link."""
        return self.seen.get(pack(channel, source, target)) == SENT | RECEIVED

    def merge(self, other: Links) -> None:
        """Add what OTHER has."""
        self.difference += other.difference
        if not self.seen:
            self.seen = other.seen.copy()
            other = Links(ends=other.ends, overflow=other.overflow)
        for key, ways in other.seen.items():
            self.seen[key] = self.seen.get(key, 0) | ways
        self.ends |= other.ends
        self.overflow |= other.overflow


def pack(channel: int, source: int, target: int) -> int:
    """One number for a link: smaller in memory than a tuple."""
    return (channel << 2 * RANK_BITS) | ((source & RANK_MASK) << RANK_BITS) | (target & RANK_MASK)


def unpack(key: int) -> tuple[int, int, int]:
    """Channel, source, target."""
    return key >> 2 * RANK_BITS, (key >> RANK_BITS) & RANK_MASK, key & RANK_MASK
