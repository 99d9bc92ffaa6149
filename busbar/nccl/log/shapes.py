"""Edges of one shape: what was matched once tells where the numbers of all others are.

The shape of a text is that text with 0 for each digit. Texts of the same shape hold their numbers at the same
places, and a pattern that names no digit matches all of them or none, in the same places. Names of transports
hold digits that matter (P2P), so these are compared as printed.
"""

from __future__ import annotations

from collections import Counter

from busbar.nccl.log import patterns as p
from busbar.nccl.log.edges import EdgeCounts
from busbar.nccl.log.evidence import Evidence
from busbar.nccl.log.links import RANK_BITS

SHAPE = bytes(ord("0") if chr(code).isdigit() and code < 128 else code for code in range(256))
Transports = dict[bytes, tuple[EdgeCounts, int]]  # as printed -> its counts and its device
# host and pid, transport, own rank of an edge: what they show of the process need not be noted twice
Noted = set[tuple[tuple[str, int], bytes, bytes]]


class Numbers(dict[bytes, int]):
    """Decimal digits -> their number: a look-up is quicker than int()."""

    def __missing__(self, digits: bytes) -> int:
        number = self[digits] = int(digits)
        return number


NUMBERS = Numbers()  # of channels and ranks, which have six digits at most
MAX_REMEMBERED = 50_000


class LocalShape:
    """Edges of one shape and one program that are counted by transport, which begins `at`."""

    __slots__ = ("at", "transports")

    def __init__(self, at: int, transports: dict[bytes, EdgeCounts]) -> None:
        self.at, self.transports = at, transports


class NetShape:
    """Edges between hosts of one shape and one program; `hold` them, then `take` all that are held."""

    __slots__ = (
        "_channel", "_connection", "_evidence", "_link", "_noted", "_own", "_sent", "_source", "_target",
        "at", "bodies", "processes", "transports",
    )  # fmt: skip

    def __init__(self, body: str, evidence: Evidence, transports: Transports, noted: Noted) -> None:
        """BODY is an edge of this shape. Raises ValueError where it is not one between two ranks."""
        match = p.EDGE.fullmatch(body)
        if match is None or match["direction"] is None or match["target"] is None:
            raise ValueError(f"not an edge between two ranks: {body}")
        self._sent = match["direction"] == "send"
        self._link = match.end("link")
        self._channel, self._source, self._target = (
            slice(*match.span(name)) for name in ("channel", "source", "target")
        )
        self._own = self._source if self._sent else self._target
        self._connection = slice(*match.span("connection")) if match["connection"] is not None else None
        self.at = match.start("transport")
        self._evidence, self.transports, self._noted = evidence, transports, noted
        self.bodies: list[bytes] = []
        self.processes: list[tuple[str, int]] = []  # host and pid of each

    def take(self) -> None:
        """Take the edges `bodies`, printed by `processes`, whose transports are known."""
        if not self.bodies:
            return
        bodies, processes = self.bodies, self.processes
        evidence, links, sent = self._evidence, self._evidence.links, self._sent
        at, own, end = self.at, self._own, self._link
        transports = [body[at:] for body in bodies]
        new = set(zip(processes, transports, [body[own] for body in bodies], strict=True)) - self._noted
        for process, transport, rank in new:
            evidence.rails.setdefault(process[0], set()).add(self.transports[transport][1])
            links.end(*process, int(rank))
        if len(self._noted) > MAX_REMEMBERED:
            self._noted.clear()
        self._noted |= new
        evidence.net_directions["send" if sent else "receive"] += len(bodies)
        for transport, count in Counter(transports).items():
            counts, device = self.transports[transport]
            counts.count += count
            links.balance[device] += count if sent else -count
        links.add([body[:end] for body in bodies], self._keys(), sent)
        bodies.clear()
        processes.clear()

    def _keys(self) -> list[int]:
        """The links of connection 0, as `links.pack` numbers them."""
        bodies, connection = self.bodies, self._connection
        if connection is not None:
            zero = b"0" * (connection.stop - connection.start)
            bodies = [body for body in bodies if body[connection] == zero]
        channel, source, target = self._channel, self._source, self._target
        if len(NUMBERS) > MAX_REMEMBERED:
            NUMBERS.clear()
        number = NUMBERS.__getitem__
        return [
            (number(body[channel]) << 2 * RANK_BITS)
            | (number(body[source]) << RANK_BITS)
            | number(body[target])
            for body in bodies
        ]
