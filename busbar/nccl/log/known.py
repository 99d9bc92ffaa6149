"""Takes the lines whose form is known, so that only the others are read in full.

Most lines of a large INFO log differ from earlier ones in their process and in numbers only. Two kinds are
taken here, where they come from a known process and are nothing but one message: an edge over a known
transport, whose link is matched as a whole, and a message whose words are known. Words are a text without
its digits. They tell which patterns may match it: those that hold a literal which is in the words, too.
Everything else is left to the reader.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from typing import Any

from busbar.nccl.log import patterns as p
from busbar.nccl.log.edges import EdgeCounts, read_edge
from busbar.nccl.log.evidence import Evidence
from busbar.nccl.log.facts import FACTS, Fact
from busbar.nccl.log.links import RANK_BITS
from busbar.nccl.log.matcher import LineMatcher
from busbar.nccl.log.messages import WORDS

# nothing that is looked for is longer; rings of thousands of ranks are
MAX_TEXT = 8192
# longer texts are not remembered, nor more than this: memory stays small
MAX_REMEMBERED = 512
REMEMBERED = 50_000
INFO, VIA = b" NCCL INFO ", b" via "
# `     sum      -1`: redop and root of a row are set apart by blanks; a message's process is not
ROW_BLANKS = b"     "
DIGITS = b"0123456789"
HEX = b"0123456789abcdef"  # what texts with the same words may differ in
# what clean.py may take out of the middle of a line
UNCLEAN = re.compile(rb"[^\t\x20-\x7e]|\]<st")
DOCKER = b'{"log":'
# a time in front of every line must not make each process a new one:
# 2026-05-05T06:16:47.123456789Z | Mon Sep  2 10:00:00 2024 | Sep 02 10:00:00 | 10:00:00.123
TIME = re.compile(
    rb"\[?(?:\d{4}-\d\d-\d\d[T ]|[A-Z][a-z]{2} (?:[A-Z][a-z]{2} )?[ \d]\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?"
    rb"(?:Z|[+-]\d\d:?\d\d| \d{4})?\]?[ :\[]"
)


def words(text: bytes) -> bytes:
    """TEXT without what differs between messages that say the same."""
    return text.translate(None, HEX)


class Numbers(dict[bytes, int]):
    """Decimal digits -> their number: a look-up is quicker than int()."""

    def __missing__(self, digits: bytes) -> int:
        number = int(digits)
        _remember(self, digits, number)
        return number


NUMBERS = Numbers()


@dataclass(slots=True, eq=False)
class Program:
    """Where messages of one program's processes go, and what of it is known, as printed."""

    evidence: Evidence
    local: dict[bytes, EdgeCounts] = field(default_factory=dict)  # transports inside a host
    net: dict[bytes, tuple[EdgeCounts, int]] = field(default_factory=dict)  # between hosts, with their device
    used: set[tuple[Process, bytes]] = field(default_factory=set)  # of `net`
    ends: set[tuple[Process, bytes]] = field(default_factory=set)  # ranks of its edges
    told: set[bytes] = field(default_factory=set)  # messages that add nothing, whichever process prints them


@dataclass(slots=True, eq=False)
class Process:
    """A process as its lines begin: `head` is that without a collector's prefix, up to the message's text."""

    host: str
    head: str
    program: Program


# edges whose link is not matched yet: the link, transport or its counts, process, number of the line
LocalEdge = tuple[bytes, EdgeCounts, int]
NetEdge = tuple[bytes, bytes, Process, int]
# a matched one: channel, connection, source, target, direction
Link = tuple[bytes, bytes, bytes, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Form:
    """What may be in messages of the same words, and has to be looked for in each."""

    unread: tuple[re.Pattern[str], ...] = ()
    facts: tuple[Fact, ...] = ()
    failures: tuple[str, ...] = ()  # literals of known failures


NOTHING = Form()


class KnownForms:
    """Learns from lines that were read in full (`learn`), and takes those of the same form (`others`)."""

    def __init__(self, matcher: LineMatcher | None) -> None:
        self._matcher = matcher
        self._processes: dict[bytes, Process] = {}
        self._forms: dict[bytes, Form] = {}
        self._programs: dict[int, Program] = {}  # by the id of its evidence
        self._unread = [(bare(text), pattern) for text, pattern in p.UNREAD_PATTERNS]
        self._facts = [(bare(fact.contains), fact) for fact in FACTS]
        literals = matcher.literals if matcher is not None else ()
        self._failures = [(bare(literal), literal) for literal in literals]

    def forget_processes(self) -> None:
        """Another part of the log begins: messages may belong elsewhere."""
        self._processes.clear()
        self._programs.clear()

    def others(self, lines: Sequence[bytes], first: int) -> Iterator[tuple[int, bytes]]:
        """Take what is known of LINES, the first of which is FIRST; yield the rest, numbered."""
        processes, forms = self._processes, self._forms
        local: list[LocalEdge] = []
        net: list[NetEdge] = []
        for number, line in enumerate(lines, first):
            head, info, body = line.partition(INFO)
            process = processes.get(head)
            if process is None or not info:
                process = self._behind_a_time(head) if info else None
                if process is None:
                    if line:
                        yield from ((at, lines[at - first]) for at in _take_edges(local, net))
                        yield number, line
                    continue
            link, via, transport = body.partition(VIA)
            program = process.program
            if via:
                if (edges := program.local.get(transport)) is not None:
                    local.append((link, edges, number))
                    continue
                if transport in program.net:
                    net.append((link, transport, process, number))
                    continue
            elif body in program.told:
                continue
            else:
                form = forms.get(body.translate(None, HEX))
                if form is NOTHING or (form is not None and self._take(form, process, body, number)):
                    continue
            yield from ((at, lines[at - first]) for at in _take_edges(local, net))
            yield number, line
        yield from ((at, lines[at - first]) for at in _take_edges(local, net))

    def learn(self, line: bytes, head: str, host: str, evidence: Evidence) -> None:
        """Remember the form of LINE, which is one INFO message of a process on HOST and nothing else.

        HEAD is what stands before the message's text in the cleaned line.
        """
        begin, _, body = line.partition(INFO)
        if len(line) > MAX_REMEMBERED or ROW_BLANKS in begin or DOCKER in begin:
            return
        if UNCLEAN.search(body.rstrip()) is not None:
            return
        program = self._programs.setdefault(id(evidence), Program(evidence))
        _remember(self._processes, _without_time(begin), Process(host, head, program))
        if VIA in body:
            edge = read_edge(body.decode("ascii"))
            if edge is not None and (edges := evidence.edges.get(edge.transport.label)) is not None:
                transport, device = body.partition(VIA)[2], edge.transport.device
                if edge.transport.kind != "NET":
                    _remember(program.local, transport, edges)
                elif device is not None:
                    _remember(program.net, transport, (edges, device))
            return
        form = self._form(words(body))
        if form is not None:
            _remember(self._forms, words(body), form)

    def _behind_a_time(self, head: bytes) -> Process | None:
        key = _without_time(head)
        return self._processes.get(key) if key is not head else None

    def _form(self, text: bytes) -> Form | None:
        """What may be in a message of the words TEXT; None where each must be read in full."""
        if p.PROCESS_SHAPE in text or any(bare(word) in text for word in WORDS):
            return None
        form = Form(
            tuple(pattern for literal, pattern in self._unread if literal in text),
            tuple(fact for literal, fact in self._facts if literal in text),
            tuple(failure for literal, failure in self._failures if literal in text),
        )
        return NOTHING if form == NOTHING else form

    def _take(self, form: Form, process: Process, body: bytes, number: int) -> bool:
        """Take a message of a known form; False where it must be read in full."""
        if len(body) > MAX_TEXT - MAX_REMEMBERED:
            return False
        text = body.decode("ascii").strip()
        for pattern in form.unread:
            if pattern.search(text) is not None:
                return False
        whole = process.head + text
        evidence = process.program.evidence
        once = not form.failures  # those are counted
        for fact in form.facts:
            if (match := fact.pattern.search(text)) is not None:
                fact.keep(evidence, match, process.host, number, whole)
                once = once and not fact.of_host
        if form.failures and self._matcher is not None:
            self._matcher.look(whole, number, form.failures)
        elif once and len(process.program.told) < REMEMBERED and len(body) <= MAX_REMEMBERED:
            process.program.told.add(body)
        return True


def _take_edges(local: list[LocalEdge], net: list[NetEdge]) -> list[int]:
    """Take the edges LOCAL and NET, and empty the lists; the lines whose link is not in a known form.

    Matching many links at once costs a third of matching each.
    """
    strange: list[int] = []
    if local:
        if p.LOCAL_LINKS.fullmatch(b"\n" + b"\n".join([link for link, _, _ in local])) is None:
            strange += [at for link, _, at in local if p.LOCAL_LINKS.fullmatch(b"\n" + link) is None]
            local[:] = [edge for edge in local if p.LOCAL_LINKS.fullmatch(b"\n" + edge[0]) is not None]
        for _, edges, _ in local:
            edges.count += 1
        local.clear()
    if net:
        found: list[Link] = p.NET_LINK.findall(b"\n".join([b"", *[link for link, _, _, _ in net], b""]))
        if len(found) != len(net):
            each = [p.NET_LINK.findall(b"\n" + link + b"\n") for link, _, _, _ in net]
            strange += [edge[3] for edge, links in zip(net, each, strict=True) if not links]
            net[:] = [edge for edge, links in zip(net, each, strict=True) if links]
        if net:
            programs = {edge[2].program for edge in net}
            for program in programs:
                mine = [edge[2].program is program for edge in net] if len(programs) > 1 else repeat(True)
                _take_net_edges(program, list(compress(net, mine)), list(compress(found, mine)))
        net.clear()
    return sorted(strange)


def _take_net_edges(program: Program, edges: list[NetEdge], links: list[Link]) -> None:
    """Take ends of edges between hosts, all of one program."""
    evidence = program.evidence
    texts, transports, processes, _ = zip(*edges, strict=True)
    channels, connections, sources, targets, directions = zip(*links, strict=True)
    number = NUMBERS.__getitem__
    sent = [direction == b"send" for direction in directions]
    own = [source if out else target for source, target, out in zip(sources, targets, sent, strict=True)]
    for process, transport in set(zip(processes, transports, strict=True)) - program.used:
        program.used.add((process, transport))
        evidence.rails.setdefault(process.host, set()).add(program.net[transport][1])
    for process, rank in set(zip(processes, own, strict=True)) - program.ends:
        program.ends.add((process, rank))
        evidence.links.end(process.host, number(rank))
    ranks = zip(map(number, channels), map(number, sources), map(number, targets), strict=True)
    keys = [(channel << 2 * RANK_BITS) | (source << RANK_BITS) | target for channel, source, target in ranks]
    first = [number(connection) == 0 for connection in connections]
    for name, way in (("send", sent), ("receive", [not out for out in sent])):
        count = sum(way)
        if count:
            evidence.net_directions[name] += count
            end = len(name) + 3  # ` [send]`
            for transport, of_it in Counter(compress(transports, way)).items():
                counts, device = program.net[transport]
                counts.count += of_it
                evidence.links.balance[device] += of_it if name == "send" else -of_it
            some = [text[:-end] for text in compress(texts, way)]
            evidence.links.add(some, compress(compress(keys, way), compress(first, way)), name == "send")


def _without_time(head: bytes) -> bytes:
    """HEAD, with the form of the time instead of the time in front of it."""
    match = TIME.match(head)
    return head if match is None else match[0].translate(None, DIGITS) + head[match.end() :]


def bare(text: str) -> bytes:
    """What is left of TEXT in the words of a message that holds it."""
    return words(text.encode())


def _remember(known: dict[bytes, Any], key: bytes, value: object) -> None:
    """Remember VALUE; where there is no more room, everything else is forgotten."""
    if len(known) >= REMEMBERED:
        known.clear()
    known[key] = value
