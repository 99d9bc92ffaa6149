"""Pass quickly over what repeats, so that only the lines that matter are read in full.

A large INFO log is almost all channel edges, and their ends (`d] via NET/IBext/3/GDRDMA`) are few. A block is
split once and the ends are counted by C code; each distinct end is read in full once. What NCCL repeats on
every rank is passed on once for each host. Whatever is not an NCCL message is passed on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import compress
from operator import itemgetter

from busbar.nccl.diagnose.diagnosis import hints
from busbar.nccl.log.clean import ANSI as ANSI_TEXT
from busbar.nccl.log.clean import clean
from busbar.nccl.log.edges import Bulk, Key, Known, edge_of, key_of
from busbar.nccl.log.patterns import BEFORE_WORDS, find_message

INFO = b" NCCL INFO "
VIA = b" via "
TAIL = (
    26  # `d] via NET/IBext/3/GDRDMA`: the letter tells send from receive; longer would tell P2P edges apart
)
TAIL_MOST = 96
MAX_EDGE = 2048  # a longer line is no edge
CACHE = 100_000
SAMPLE = 16
# `     sum      -1`: redop and root of a row are set apart by five blanks; messages have no such gap
ROW_BLANKS = b"     "
# what evidence.py and diagnosis.py look for in a message; any other body is only counted
HINTS = (
    "CCL version", "Using network", "NCCL_", "Could not open", "NET/", "Plugin Path", "network plugin",
    "P2P plugin", "NET plugin", "nranks", "nRanks", "Connected all rings,", "-> Algo", "coll channels",
    "NVLS multicast", "Direct RDMA", "CCL INFO ", "CCL WARN ", "_perf",
)  # fmt: skip
INTERESTING = re.compile("|".join(re.escape(h) for h in (*HINTS, *hints())).encode())
HOST = re.compile(rb"([A-Za-z0-9_][\w.\-]*):\d+(?::\d+)? \[-?\d*\]$")

ANSI = re.compile(ANSI_TEXT.pattern.encode())

Numbered = tuple[int, bytes]
NOTHING: set[bytes] = set()  # by identity: a body that is only counted
ALWAYS: set[bytes] = set()  # by identity: a body that is always read


class Scanner:
    """Call `block` for each block of whole lines; it returns those to read in full. End with `finish`."""

    def __init__(self) -> None:
        self.bulk = Bulk()
        self._length = self._needed = TAIL
        self._get: Callable[[bytes], bytes] = itemgetter(slice(-TAIL, None))
        self._edges: dict[bytes, Key] = {}  # end of a line -> the edge that it is
        self._net: dict[bytes, int] = {}  # those of them that leave the host -> device
        self._devices: set[int] = set()
        self._paired = 0
        self._counts: Counter[bytes] = Counter()
        self._heads: dict[bytes, bytes | None] = {}
        self._said: dict[bytes, set[bytes]] = {}

    def block(self, block: bytes, number: int) -> list[Numbered]:
        """Lines of BLOCK to read in full, in order; NUMBER is that of its first line."""
        if b"\x1b" in block:
            block = ANSI.sub(b"", block)
        if b"\x00" in block:
            block = block.replace(b"\x00", b"")
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        if INFO not in block:
            return [(number + i, line) for i, line in enumerate(lines) if line]
        tails = list(map(self._get, lines))
        counts = Counter(tails)
        strange = counts.keys() - self._edges.keys()
        odd: list[int] = []
        if strange:
            strange -= self._learned([t for t in strange if VIA in t], lines, tails, number)
            odd = list(compress(range(len(lines)), map(strange.__contains__, tails)))
            for tail in strange:
                del counts[tail]
        full = self._new(lines, odd, number)
        if self._edges:
            self._rows_in_edges(block, lines, tails, odd, number, counts, full)
        self._counts.update(counts)
        if self._net:
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

    # ---- edges ------------------------------------------------------------------------------------------

    def _learned(self, fresh: list[bytes], lines: list[bytes], tails: list[bytes], number: int) -> set[bytes]:
        """Those of the FRESH ends that are edges: known from now on. One line of each is read."""
        found = set()
        if len(self._edges) > CACHE:
            self._fold()
            self._edges.clear()
            self._net.clear()
        for tail in fresh:
            index = tails.index(tail)
            known = _edge_line(lines[index], number + index)
            if known is None:
                continue
            edge = known.edge
            if edge.kind != "P2P" and tail.index(VIA) < 2:
                # its direction does not fit: such lines are read one by one until the next block
                self._needed = max(self._needed, min(TAIL_MOST, self._length + 2))
                continue
            key = key_of(edge)
            self._edges[tail] = key
            if edge.kind == "NET" and edge.device is not None:
                self._net[tail] = edge.device
                self._devices.add(edge.device)
            if key not in self.bulk.known or known.line < self.bulk.known[key].line:
                self.bulk.known[key] = known
            found.add(tail)
        return found

    def _widen(self) -> None:
        self._fold()
        self._length = self._needed
        self._get = itemgetter(slice(-self._needed, None))
        self._edges.clear()
        self._net.clear()

    def _fold(self) -> None:
        """Move counts by end of line to counts by what the end says."""
        for tail, count in self._counts.items():
            self.bulk.counts[self._edges[tail]] += count
            self.bulk.messages += count
        self._counts.clear()

    def _rows_in_edges(
        self, block: bytes, lines: list[bytes], tails: list[bytes], odd: list[int], number: int,
        counts: Counter[bytes], full: list[Numbered],
    ) -> None:  # fmt: skip
        """Edge lines that carry the beginning of an interrupted row: read in full, not counted."""
        if not self._row_in_an_edge(block):
            return
        known = set(odd)
        for i, line in enumerate(lines):
            if ROW_BLANKS in line and i not in known:
                counts[tails[i]] -= 1
                full.append((number + i, line))
        full.sort()

    def _row_in_an_edge(self, block: bytes) -> bool:
        position = block.find(ROW_BLANKS)
        while position >= 0:
            end = block.find(b"\n", position)
            end = end if end >= 0 else len(block)
            if block.rfind(VIA, position, end) >= 0 and self._get(block[position:end]) in self._edges:
                return True
            position = block.find(ROW_BLANKS, end)
        return False

    def _rails(self, lines: list[bytes], tails: list[bytes]) -> None:
        """Devices of each host: all lines until each known host uses each known device, then samples."""
        pairs, net = self.bulk.pairs, self._net
        most = len(self._devices)
        if self._paired and self._paired == most * len(self.bulk.hosts):
            lines, tails = lines[::SAMPLE], tails[::SAMPLE]
        for line, device in zip(lines, map(net.get, tails), strict=True):
            if device is None:
                continue
            host = self._host(line.partition(INFO)[0])
            if host is not None:
                devices = pairs.get(host)
                if devices is None:
                    pairs[host] = {device}
                    self._paired += 1
                elif device not in devices:
                    devices.add(device)
                    self._paired += 1

    # ---- other messages ---------------------------------------------------------------------------------

    def _host(self, head: bytes) -> bytes | None:
        """Host of a message's head (`[1,0]<stdout>:worker-0:42:100 [0]`), None where it is not plain."""
        try:
            return self._heads[head]
        except KeyError:
            match = HOST.search(head, max(0, len(head) - BEFORE_WORDS))
            host = match[1] if match is not None and ROW_BLANKS not in head else None
            if len(self._heads) > CACHE:
                self._heads.clear()
            self._heads[head] = host
            if host is not None:
                self.bulk.hosts.add(host)
            return host

    def _new(self, lines: list[bytes], odd: list[int], number: int) -> list[Numbered]:
        """Lines that must be read: all but messages that say nothing, or that the host said before."""
        full: list[Numbered] = []
        host_of, hosts_of = self._heads.get, self._said.get
        skipped = 0
        for i in odd:
            head, info, body = lines[i].partition(INFO)
            if info:
                host = host_of(head) or self._host(head)
                if host:
                    hosts = hosts_of(body)
                    if hosts is None:
                        hosts = self._weigh(body)
                    if hosts is NOTHING or host in hosts:
                        skipped += 1
                        continue
                    if hosts is not ALWAYS:
                        hosts.add(host)
            elif not head:
                continue
            full.append((number + i, lines[i]))
        self.bulk.messages += skipped
        return full

    def _weigh(self, body: bytes) -> set[bytes]:
        """Whether a new body can matter: the set of hosts that said it, NOTHING or ALWAYS."""
        if VIA in body:
            known = _edge_line(b"h:1:1 [0] NCCL INFO " + body, 0)
            if known is not None:
                token = len(body) - body.rindex(VIA)
                self._needed = max(self._needed, min(TAIL_MOST, token + 2))
            return ALWAYS
        hosts: set[bytes] = set() if INTERESTING.search(body) is not None else NOTHING
        if len(self._said) > CACHE:
            self._said.clear()
        self._said[body] = hosts
        return hosts


def _edge_line(line: bytes, number: int) -> Known | None:
    """The edge of a line that is nothing but an NCCL message about one."""
    if ROW_BLANKS in line or len(line) > MAX_EDGE:
        return None
    text = clean(line[:MAX_EDGE]).text
    message = find_message(text)
    if message is None or message["level"] != "INFO" or message.start() > 0:
        return None
    edge = edge_of(message["body"].strip())
    return None if edge is None else Known(edge, message["host"] or "", number, text[:400])
