"""Takes the lines whose form is known, so that only the others are read in full.

Most lines of a large INFO log differ from earlier ones in their process and in numbers only. Two kinds are
taken here, where they come from a known process and are nothing but one message: those of a known shape
(shapes.py), which are edges or say nothing whatever their numbers are, and those of known words. Words are a
text without its digits. They tell which patterns may match it: those that hold a literal which is in the
words, too. Everything else is left to the reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from busbar.nccl.log import patterns as p
from busbar.nccl.log.edges import EdgeCounts, read_edge
from busbar.nccl.log.evidence import Evidence
from busbar.nccl.log.facts import FACTS, Fact, find
from busbar.nccl.log.matcher import KnownLine, LineMatcher
from busbar.nccl.log.messages import WORDS
from busbar.nccl.log.shapes import SHAPE, LocalShape, NetShape, Noted, Transports

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
ADDRESS = b" 0x"  # differs in letters, too: the shape of such a message does not come again
# P2P/IPC/read comm 0x7f2e5c001000 nRanks 16        NCCL 2.12
COMM = b" comm 0x"
COMM_TAIL = re.compile(rb" comm 0x[0-9a-f]+ nRanks \d+\.?\s*\Z")
# what clean.py may take out of the middle of a line
UNCLEAN = re.compile(rb"[^\t\x20-\x7e]|\]<st")
JSON = b'{"'
# a time in front of every line must not make each process a new one:
# 2026-05-05T06:16:47.123456789Z | Mon Sep  2 10:00:00 2024 | Sep 02 10:00:00 | 10:00:00.123
TIME = re.compile(
    rb"\[?(?:\d{4}-\d\d-\d\d[T ]|[A-Z][a-z]{2} (?:[A-Z][a-z]{2} )?[ \d]\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?"
    rb"(?:Z|[+-]\d\d:?\d\d| \d{4})?\]?[ :\[]"
)


def words(text: bytes) -> bytes:
    """TEXT without what differs between messages that say the same."""
    return text.translate(None, HEX)


class Silent:
    """A message of this shape holds nothing that is looked for."""


SILENT = Silent()


@dataclass(slots=True, eq=False)
class Program:
    """Where messages of one program's processes go, and what of it is known, as printed."""

    evidence: Evidence
    # shape of a message -> where its numbers are, or that it says nothing
    shapes: dict[bytes, LocalShape | NetShape | Silent] = field(default_factory=dict)
    local: dict[bytes, EdgeCounts] = field(default_factory=dict)  # transports inside a host
    net: Transports = field(default_factory=dict)  # between hosts
    noted: Noted = field(default_factory=set)
    # messages that add nothing but to the counts of known failures, whichever process prints them
    told: dict[bytes, tuple[KnownLine, ...]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Process:
    """A process as its lines begin: `head` is that without a collector's prefix, up to the message's text."""

    name: tuple[str, int]  # host, pid
    head: str
    program: Program


@dataclass(frozen=True, slots=True)
class Form:
    """What may be in messages of the same words, and has to be looked for in each."""

    unread: tuple[re.Pattern[str], ...] = ()
    facts: tuple[Fact, ...] = ()
    failures: tuple[str, ...] = ()  # literals of known failures


class KnownForms:
    """Learns from lines that were read in full (`learn`), and takes those of the same form (`others`)."""

    def __init__(self, matcher: LineMatcher | None) -> None:
        self._matcher = matcher
        self._processes: dict[bytes, Process] = {}
        self._forms: dict[bytes, Form] = {}
        self._silent: dict[bytes, bool] = {}  # shape -> whether it says nothing that is looked for
        self._failing: dict[bytes, bool] = {}  # shape -> whether it may hold what known failures hold
        self._programs: dict[int, Program] = {}  # by the id of its evidence
        self._holding: list[NetShape] = []
        self._unread = [(bare(text), pattern) for text, pattern in p.UNREAD_PATTERNS]
        self._facts = [(bare(fact.contains), fact) for fact in FACTS]
        literals = matcher.literals if matcher is not None else ()
        self._failures = [(bare(literal), literal) for literal in literals]
        self._failure_shapes = [literal.encode().translate(SHAPE) for literal in literals]

    def forget_processes(self) -> None:
        """Another part of the log begins: messages may belong elsewhere."""
        self._take_held()
        self._processes.clear()
        self._programs.clear()

    def others(self, lines: Sequence[bytes], first: int) -> Iterator[tuple[int, bytes]]:
        """Take what is known of LINES, the first of which is FIRST; yield the rest, numbered."""
        processes, holding = self._processes, self._holding
        for number, line in enumerate(lines, first):
            head, info, body = line.partition(INFO)
            process = processes.get(head)
            if process is None or not info:
                process = self._behind_a_time(head) if info else None
                if process is None:
                    if line:
                        yield number, line
                    continue
            program = process.program
            known = program.shapes.get(body.translate(SHAPE))
            if known is None:
                if (failures := program.told.get(body)) is not None:
                    for failure in failures:
                        failure.count += 1
                elif not self._take(process, body, number):
                    yield number, line
            elif isinstance(known, LocalShape):
                if (edges := known.transports.get(body[known.at :])) is not None:
                    edges.count += 1
                else:
                    yield number, line
            elif isinstance(known, NetShape):
                if body[known.at :] in known.transports:
                    if not known.bodies:
                        holding.append(known)
                    known.bodies.append(body)
                    known.processes.append(process.name)
                else:
                    yield number, line
        self._take_held()

    def learn(self, line: bytes, head: str, process: tuple[str, int], evidence: Evidence) -> None:
        """Remember the form of LINE, which is one INFO message of PROCESS (host, pid) and nothing else.

        HEAD is what stands before the message's text in the cleaned line.
        """
        begin, _, body = line.partition(INFO)
        if len(line) > MAX_REMEMBERED or ROW_BLANKS in begin or JSON in begin:
            return
        if UNCLEAN.search(body.rstrip()) is not None:
            return
        program = self._programs.setdefault(id(evidence), Program(evidence))
        _remember(self._processes, _without_time(begin), Process(process, head, program))
        if VIA in body:
            self._learn_edge(program, _without_communicator(body))
        elif (text := words(body)) not in self._forms and (form := self._form(text)) is not None:
            _remember(self._forms, text, form)

    def _learn_edge(self, program: Program, body: bytes) -> None:
        edge, shape = read_edge(body.decode("ascii")), body.translate(SHAPE)
        if edge is None or self._may_fail(shape):
            return
        counts = program.evidence.edges.get(edge.transport.label)
        if counts is None:
            return
        link, _, transport = body.partition(VIA)
        if edge.transport.kind != "NET" or edge.transport.device is None:
            _remember(program.local, transport, counts)
            _remember(program.shapes, shape, LocalShape(len(link) + len(VIA), program.local))
        elif edge.direction and edge.target >= 0:
            _remember(program.net, transport, (counts, edge.transport.device))
            if shape not in program.shapes:
                known = NetShape(body.decode("ascii"), program.evidence, program.net, program.noted)
                _remember(program.shapes, shape, known)

    def _behind_a_time(self, head: bytes) -> Process | None:
        key = _without_time(head)
        return self._processes.get(key) if key is not head else None

    def _form(self, text: bytes) -> Form | None:
        """What may be in a message of the words TEXT; None where each must be read in full."""
        if p.PROCESS_SHAPE in text or any(bare(word) in text for word in WORDS):
            return None
        return Form(
            tuple(pattern for literal, pattern in self._unread if literal in text),
            tuple(fact for literal, fact in self._facts if literal in text),
            tuple(failure for literal, failure in self._failures if literal in text),
        )

    def _take(self, process: Process, body: bytes, number: int) -> bool:
        """Take a message, if it is of a known form; False where it must be read in full."""
        program = process.program
        if COMM in body and (link := _without_communicator(body)) is not body:
            known = program.shapes.get(link.translate(SHAPE))
            edges = program.local.get(link.partition(VIA)[2]) if isinstance(known, LocalShape) else None
            if edges is None:
                return False
            edges.count += 1
            return True
        if len(body) <= MAX_REMEMBERED and ADDRESS not in body:
            shape = body.translate(SHAPE)
            silent = self._silent.get(shape)
            if silent is None:
                silent = self._says_nothing(shape)
                _remember(self._silent, shape, silent)
            if silent:
                _remember(program.shapes, shape, SILENT)
                return True
        form = self._forms.get(words(body))
        return form is not None and self._take_form(form, process, body, number)

    def _says_nothing(self, shape: bytes) -> bool:
        """Whether nothing that is looked for is in a message of SHAPE, whatever its numbers are."""
        if b"via " in shape or UNCLEAN.search(shape.rstrip()) is not None:
            return False
        text = shape.decode("ascii").strip()
        read = any(word in text for word in WORDS) or p.names_process(text) or p.names_transport(text)
        return not (read or find(text) or self._may_fail(shape))

    def _may_fail(self, shape: bytes) -> bool:
        """Whether a text of SHAPE may hold what known failures hold."""
        may_fail = self._failing.get(shape)
        if may_fail is None:
            may_fail = any(literal in shape for literal in self._failure_shapes)
            _remember(self._failing, shape, may_fail)
        return may_fail

    def _take_form(self, form: Form, process: Process, body: bytes, number: int) -> bool:
        """Take a message of a known form; False where it must be read in full."""
        if len(body) > MAX_TEXT - MAX_REMEMBERED:
            return False
        text = body.decode("ascii").strip()
        for pattern in form.unread:
            if pattern.search(text) is not None:
                return False
        whole = process.head + text
        program = process.program
        once = True
        for fact in form.facts:
            if (match := fact.pattern.search(text)) is not None:
                fact.keep(program.evidence, match, process.name[0], number, whole)
                once = once and not fact.of_host
        failures: tuple[KnownLine, ...] = ()
        if form.failures and self._matcher is not None:
            failures = self._matcher.look(whole, number, form.failures)
        if once and len(program.told) < REMEMBERED and len(body) <= MAX_REMEMBERED:
            program.told[body] = failures
        return True

    def _take_held(self) -> None:
        """Take the edges between hosts that were held back."""
        for shape in self._holding:
            shape.take()
        self._holding.clear()


def _without_communicator(body: bytes) -> bytes:
    """An edge as NCCL 2.12 prints it without its communicator, whose address is another in each process."""
    tail = COMM_TAIL.search(body)
    return body if tail is None else body[: tail.start()]


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
