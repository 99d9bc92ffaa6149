"""The printed links between hosts. A link is printed by its sender and by its receiver.

Only data for comparing both ends is kept: a sum over all links, and one entry for each link of a collective
(connection 0), since their number is bounded by channels and hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MAX_LINKS = 400_000
MAX_ENDS = 65_536
End = tuple[str, int, int]  # host, pid, own rank
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

    def end(self, host: str, pid: int, rank: int) -> None:
        """Record that the process PID on HOST (0, "": not printed) printed an edge of its own RANK."""
        end = host, pid, rank
        if end not in self.ends:
            self.overflow |= len(self.ends) >= MAX_ENDS
            if not self.overflow:
                self.ends.add(end)

    def add(self, text: str, key: int | None, sent: bool) -> None:
        """Add one end of a link: TEXT as printed, equal at both ends; KEY (`pack`) for connection 0."""
        self.difference += hash(text) if sent else -hash(text)
        if key is None:
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
