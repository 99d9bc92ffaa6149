"""Pass quickly over what repeats, so that only the lines that matter are read in full.

A large INFO log is almost all channel edges, and their ends (`] via NET/IBext/3/GDRDMA`) are few. A block is
split once and the ends are counted by C code; each distinct end is read in full once. What NCCL repeats on
every rank is passed on once for each host. Whatever is not an NCCL message is passed on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter

from busbar.nccl.clean import clean
from busbar.nccl.diagnosis import hints
from busbar.nccl.evidence import Edge, edge_of
from busbar.nccl.patterns import MESSAGE

INFO = b" NCCL INFO "
TAIL = 24  # `] via NET/IBext/3/GDRDMA`; longer would tell P2P edges of single channels apart
TAIL_MOST = 96
CACHE = 100_000
SAMPLE = 16
# some columns of a row are always set apart by four blanks; an edge line has no two
ROW_BLANKS = b"    "
# what evidence.py and diagnosis.py look for in a message; any other body is only counted
HINTS = (
    "CCL version", "Using network", "NCCL_", "Could not open", "NET/", "Plugin Path", "P2P plugin",
    "NET plugin", "nranks", "nRanks", "Connected all rings", "-> Algo", "coll channels", "NVLS multicast", 
    "Direct RDMA", " via ", "CCL INFO ", "CCL WARN ", "_perf",
)  # fmt: skip
INTERESTING = re.compile("|".join(re.escape(h) for h in (*HINTS, *hints())).encode())
HOST = re.compile(rb"([A-Za-z0-9_][\w.\-]*):\d+:\d+ \[-?\d*\]$")

Numbered = tuple[int, bytes]


@dataclass
class Known:
    """An end of a line that is an edge: what it says, where it was first, how often it was seen."""

    edge: Edge
    host: str
    line: int
    text: str
    net: bool
    device: int | None


@dataclass
class Bulk:
    """What was counted without being read; parse.py merges it into the evidence."""

    known: dict[tuple[str, int | None], Known] = field(default_factory=dict)
    counts: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    pairs: dict[bytes, set[int]] = field(default_factory=dict)  # host -> devices of its NET edges
    hosts: set[bytes] = field(default_factory=set)
    sends: int = 0
    messages: int = 0


class Scanner:
    """Call `block` for each block of whole lines; it returns those to read in full. End with `finish`."""

    def __init__(self) -> None:
        self.bulk = Bulk()
        self._length = self._needed = TAIL
        self._get: Callable[[bytes], bytes] = itemgetter(slice(-TAIL, None))
        self._edges: dict[bytes, Known] = {}
        self._net: dict[bytes, int] = {}  # those of them that are NET edges -> device
        self._counts: Counter[bytes] = Counter()
        self._heads: dict[bytes, bytes | None] = {}
        self._boring: dict[bytes, bool] = {}
        self._passed: set[int] = set()
        self._devices: set[int] = set()

    def block(self, block: bytes, number: int) -> list[Numbered]:
        """Lines of BLOCK to read in full, in order; NUMBER is that of its first line."""
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        if INFO not in block:
            return [(number + i, line) for i, line in enumerate(lines) if line]
        tails = list(map(self._get, lines))
        full: list[Numbered] = []
        blanks = 0
        edges = self._edges
        unlike: list[bytes] = []
        if not all(map(edges.__contains__, tails)):
            for i, tail in enumerate(tails):
                if tail in edges:
                    continue
                line = lines[i]
                if not self._learn(tail, line, number + i):
                    blanks += line.count(ROW_BLANKS)
                    unlike.append(tail)
                    if self._wanted(line):
                        full.append((number + i, line))
        self._counts.update(tails)
        for tail in unlike:
            # an odd line may share its end with an edge that was learned after it
            if tail in edges:
                self._counts[tail] -= 1
        if ROW_BLANKS in block and block.count(ROW_BLANKS) > blanks:
            full += self._rows_in_edges(lines, tails, number)
            full.sort()
        if self._net:
            self.bulk.sends += block.count(b"[send] via NET/")
            self._rails(lines, tails)
        if len(self._counts) > CACHE:
            self._fold()
        if self._needed > self._length:
            self._widen()
        return full

    def finish(self) -> Bulk:
        """Everything that was counted."""
        self._fold()
        return self.bulk

    # ---- edges --------------------------------------------------------------------------------------------

    def _learn(self, tail: bytes, line: bytes, number: int) -> bool:
        """Read a line whose end is new; True if it is an edge, to be known by its end from now on."""
        if b" via " not in line or ROW_BLANKS in line:
            return False
        text = clean(line).text
        message = MESSAGE.search(text)
        if message is None or message["level"] != "INFO" or message.start() > 0:
            return False
        edge = edge_of(message["body"].strip())
        if edge is None:
            return False
        token = line[line.rfind(b" via ") + 5 :]
        if len(token) + 1 > self._length:
            # its name does not fit: such lines are read one by one until the next block
            self._needed = max(self._needed, min(TAIL_MOST, len(token) + 1))
            return False
        device = edge.device if edge.kind == "NET" else None
        known = Known(edge, message["host"] or "", number, text[:400], edge.kind == "NET", device)
        if len(self._edges) < CACHE:
            self._edges[tail] = known
            if device is not None:
                self._net[tail] = device
                self._devices.add(device)
        self.bulk.known.setdefault((edge.label, device), known)
        return len(self._edges) < CACHE

    def _widen(self) -> None:
        self._fold()
        self._length = self._needed
        self._get = itemgetter(slice(-self._needed, None))
        self._edges.clear()
        self._net.clear()

    def _fold(self) -> None:
        """Move counts by end of line to counts by what the end says."""
        for tail, known in self._edges.items():
            count = self._counts.get(tail, 0)
            if count:
                key = (known.edge.label, known.device)
                self.bulk.counts[key] += count
                self.bulk.messages += count
        self._counts.clear()

    def _rows_in_edges(self, lines: list[bytes], tails: list[bytes], number: int) -> list[Numbered]:
        """Edge lines that carry the beginning of an interrupted row: read in full, not counted."""
        found = []
        for i, line in enumerate(lines):
            if ROW_BLANKS in line and tails[i] in self._edges:
                self._counts[tails[i]] -= 1
                if b"[send] via NET/" in line:
                    self.bulk.sends -= 1
                found.append((number + i, line))
        return found

    def _rails(self, lines: list[bytes], tails: list[bytes]) -> None:
        """Devices of each host: all lines until each known host uses each known device, then samples."""
        pairs, net = self.bulk.pairs, self._net
        full = len(self._devices)
        complete = bool(pairs) and all(len(pairs.get(h, ())) == full for h in self.bulk.hosts)
        step = SAMPLE if complete else 1
        for i in range(0, len(lines), step):
            device = net.get(tails[i])
            if device is None:
                continue
            host = self._host(lines[i].partition(INFO)[0])
            if host is None:
                continue
            devices = pairs.get(host)
            if devices is None:
                pairs[host] = {device}
                self.bulk.hosts.add(host)
            elif device not in devices:
                devices.add(device)

    # ---- other messages -----------------------------------------------------------------------------------

    def _host(self, head: bytes) -> bytes | None:
        """Host of a message's head (`[1,0]<stdout>:worker-0:42:100 [0]`)."""
        try:
            return self._heads[head]
        except KeyError:
            match = HOST.search(head)
            host = match[1] if match is not None else None
            if len(self._heads) > CACHE:
                self._heads.clear()
            self._heads[head] = host
            return host

    def _wanted(self, line: bytes) -> bool:
        """Whether a line that is no edge must be read: not if NCCL said the same on that host before."""
        head, info, body = line.partition(INFO)
        if not info:
            return bool(line)
        host = self._host(head)
        if host is None or ROW_BLANKS in head:
            return True
        self.bulk.messages += 1
        self.bulk.hosts.add(host)
        boring = self._boring.get(body)
        if boring is None:
            boring = INTERESTING.search(body) is None
            if len(self._boring) > CACHE:
                self._boring.clear()
            self._boring[body] = boring
        if boring:
            return False
        key = hash((host, body))
        if key in self._passed:
            return False
        if len(self._passed) > 2 * CACHE:
            self._passed.clear()
        self._passed.add(key)
        self.bulk.messages -= 1
        return True
