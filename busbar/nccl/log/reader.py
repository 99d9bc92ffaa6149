"""Read a log once, line by line: tables, NCCL's evidence, and the lines that a caller's matcher knows.

Most lines of a large INFO log are messages that say nothing that is looked for, thousands of times with other
numbers. Such a line is looked at in full once: what its text without digits cannot hold (a fact of
evidence.py, a literal of the matcher), no line with the same text holds. Edges are counted at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from busbar.nccl.log import patterns as p
from busbar.nccl.log.clean import clean
from busbar.nccl.log.edges import read_edge
from busbar.nccl.log.evidence import EVIDENCE_WIDTH, FACTS, Evidence
from busbar.nccl.log.records import LogLine, Preamble, Run
from busbar.nccl.log.source import BLOCK, Source, SourceError, open_log
from busbar.nccl.log.tables import RunBuilder

# nothing that is looked for is longer; rings of thousands of ranks are
MAX_TEXT = 8192
# a text longer than this is not remembered: memory stays small
MAX_REMEMBERED = 512
REMEMBERED = 50_000
MAX_HOST = 255
INFO = " NCCL INFO "
# `     sum      -1`: redop and root of a row are set apart by blanks; a message's process is not
ROW_BLANKS = "     "
GLUED_NUMBER = re.compile(r"-?\d+(?=[A-Za-z])")
# texts that differ only in these characters say the same
NO_DIGITS = str.maketrans("", "", "0123456789abcdef")


@dataclass(slots=True)
class KnownLine:
    """What a matcher recognized: its name for it, the first line, and how many lines there were."""

    name: str
    severity: str
    meaning: str
    first: LogLine
    count: int = 1


class LineMatcher(Protocol):
    """Recognizes lines on behalf of a caller (known failures, see busbar.nccl.diagnose)."""

    @property
    def literals(self) -> Iterable[str]:
        """Texts of which one is in every line that can be recognized."""

    def look(self, text: str, line: int) -> None:
        """Take one cleaned line or message."""

    def known_lines(self) -> list[KnownLine]:
        """Everything that was recognized."""


@dataclass
class ParsedLog:
    """Everything that the checks look at. `dangling`: a preamble that no table followed (a hang, a kill)."""

    runs: list[Run]
    dangling: Preamble | None
    evidence: Evidence
    known_lines: list[KnownLine] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    sha256: str = ""
    truncated: str | None = None
    long_lines: int = 0
    last_line: str = ""


def read_lines(lines: Iterable[bytes | str], matcher: LineMatcher | None = None) -> ParsedLog:
    """Read an iterable of lines, with or without their line ends."""
    source = Source()
    return read_blocks(source.blocks(as_bytes(lines)), source, matcher)


def read_file(path: str, matcher: LineMatcher | None = None) -> ParsedLog:
    """Read the file PATH or, for '-', standard input. Raises SourceError where it cannot be read."""
    source = Source()
    stream = open_log(path)
    try:
        return read_blocks(source.blocks(source.chunks(stream)), source, matcher)
    except OSError as error:
        raise SourceError(f"{path}: read failed: {error}") from error
    finally:
        if path != "-":
            stream.close()


def read_blocks(blocks: Iterable[bytes], source: Source, matcher: LineMatcher | None = None) -> ParsedLog:
    """Read blocks of whole lines, of which SOURCE keeps count, to the end."""
    reader = LogReader(matcher)
    for block in blocks:
        reader.block(block)
    return reader.result(source)


def as_bytes(lines: Iterable[bytes | str]) -> Iterator[bytes]:
    """Lines of text or bytes, with or without their ends, as chunks in which each has exactly one end."""
    chunk: list[bytes] = []
    held = 0
    for line in lines:
        raw = line.encode("utf-8", "replace") if isinstance(line, str) else bytes(line)
        chunk.append(raw if raw.endswith(b"\n") else raw + b"\n")
        held += len(raw)
        if held >= BLOCK:
            yield b"".join(chunk)
            chunk, held = [], 0
    if chunk:
        yield b"".join(chunk)


class LogReader:
    """Feed blocks of whole lines to `block`, then call `result`."""

    def __init__(self, matcher: LineMatcher | None = None) -> None:
        self.builder = RunBuilder()
        self.evidence = Evidence()
        self._matcher = matcher
        self._lines = 0
        self._last_line = ""
        # what evidence.py keeps, a transport in an unknown form, a second message in the line
        literals = [*(fact.contains for fact in FACTS), " via ", "NCCL INFO ", "NCCL WARN "]
        literals += matcher.literals if matcher is not None else ()
        bare = sorted({literal.translate(NO_DIGITS) for literal in literals})
        self._may_matter = re.compile("|".join(map(re.escape, bare)))
        self._hosts: dict[str, str | None] = {}  # what stands before INFO -> host; None: not plain
        self._silent: set[str] = set()  # messages without digits that hold nothing

    def block(self, block: bytes) -> None:
        """Take a block of whole lines."""
        lines = block.decode("utf-8", "replace").split("\n")
        if not lines[-1]:
            lines.pop()
        hosts, silent, evidence = self._hosts, self._silent, self.evidence
        skipped, number, line = 0, self._lines, ""
        for line in lines:
            number += 1
            head, info, body = line.partition(INFO)
            if info:
                host = hosts.get(head)
                if host is not None and len(body) <= MAX_REMEMBERED:
                    edge = read_edge(body)
                    if edge is not None:
                        skipped += 1
                        evidence.edge(edge, host, number, line)
                        continue
                    words = body.translate(NO_DIGITS)
                    if words in silent:
                        skipped += 1
                        continue
                    if self._may_matter.search(words) is None:
                        self._remember(words)
            elif not head:
                continue
            self._line(line, number)
        evidence.messages += skipped
        self._lines = number
        self._last_line = next((x for x in reversed(lines) if x.strip()), self._last_line)

    def result(self, source: Source) -> ParsedLog:
        """Everything that was read from SOURCE."""
        self.builder.finish()
        return ParsedLog(
            runs=self.builder.runs,
            dangling=self.builder.dangling,
            evidence=self.evidence,
            known_lines=self._matcher.known_lines() if self._matcher is not None else [],
            lines=self._lines,
            bytes=source.bytes,
            sha256=source.sha256.hexdigest(),
            truncated=source.truncated,
            long_lines=source.long_lines,
            last_line=clean(self._last_line[:MAX_TEXT])[:EVIDENCE_WIDTH],
        )

    def _remember(self, words: str) -> None:
        if len(self._silent) >= REMEMBERED:
            self._silent.clear()
        self._silent.add(words)

    def _line(self, line: str, number: int) -> None:
        """Take one line in full."""
        text = clean(line[:MAX_TEXT])
        if not text:
            return
        message = p.find_message(text)
        if message is None:
            self._plain(text, number)
            return
        start, host = self._unglue(text, message, 0)
        if text[:start].strip():
            self._plain(text[:start], number)
        elif message["level"] == "INFO":
            self._know(line, host)
        while message is not None:
            following = p.find_message(text, message.end())
            end, next_host = len(text), ""
            if following is not None:
                end, next_host = self._unglue(text, following, message.end())
            body = text[message.end() : end].strip()
            self.evidence.message(message["level"], host, body, number, text[start:end])
            if self._matcher is not None:
                self._matcher.look(text[start:end], number)
            message, start, host = following, end, next_host

    def _plain(self, text: str, number: int) -> None:
        """Take a text that is not a message of NCCL."""
        self.builder.add(text, number)
        self.evidence.plain_line(text, number)
        if self._matcher is not None:
            self._matcher.look(text, number)

    def _know(self, line: str, host: str) -> None:
        """Remember that what stands before INFO in LINE is a process on HOST and nothing else."""
        head = line.partition(INFO)[0]
        if host and len(head) <= MAX_REMEMBERED and ROW_BLANKS not in head:
            if len(self._hosts) >= REMEMBERED:
                self._hosts.clear()
            self._hosts[head] = host

    def _unglue(self, text: str, message: re.Match[str], after: int) -> tuple[int, str]:
        """Where a message begins, and its host: text behind AFTER may stick to the host's name.

        `float     sum      -1gcn151:1904979:...`: a row was interrupted right behind its root.
        """
        start, host = message.start(), message["host"] or ""
        if not host or not text[after:start].strip():
            return start, host
        end = message.end("host")
        first = max(after, text.rfind(" ", 0, end) + 1, text.rfind("\t", 0, end) + 1)
        glued = text[first:end]
        ends = (glued[i:] for i in range(max(0, len(glued) - MAX_HOST), len(glued)))
        known = (x for x in ends if x in self.evidence.hosts or x in self.builder.hosts)
        if (found := next(known, None)) is not None:
            host = found
        elif p.ROW_START.search(text[after:start]) and (digits := GLUED_NUMBER.match(glued)) is not None:
            host = glued[digits.end() :]
        return end - len(host), host
