"""Read a log once, line by line: tables, NCCL's evidence, and the lines that a caller's matcher knows.

Most lines of a large INFO log are messages of which only the process differs, or the numbers. Three of them
are not read in full again, where they come from a process that is known and are nothing but one message:
an edge whose transport is known (it is counted), a message with a text that is known (its facts are), and a
message whose text without digits can hold neither a fact of evidence.py nor a literal of the matcher.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from busbar.nccl.log import patterns as p
from busbar.nccl.log.binding import Binding, Proof
from busbar.nccl.log.clean import clean
from busbar.nccl.log.edges import Transport, link, read_edge
from busbar.nccl.log.evidence import EVIDENCE_WIDTH, KEEP_HOSTS, Evidence, plain_facts
from busbar.nccl.log.facts import FACTS, FoundFact, find
from busbar.nccl.log.messages import Message, find_message
from busbar.nccl.log.records import LogLine, Preamble, Run, whole
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

    def look(self, text: str, line: int) -> bool:
        """Take one cleaned line or message; True where it is recognized."""

    def known_lines(self) -> list[KnownLine]:
        """Everything that was recognized."""


@dataclass
class ParsedLog:
    """Everything that the checks look at. `dangling`: a preamble that no table followed (a hang, a kill).

    `evidence` is all that NCCL printed in this log, `proofs` what was printed for each of `runs`.
    """

    runs: list[Run]
    dangling: Preamble | None
    evidence: Evidence
    proofs: list[Proof]
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
        self.hosts: set[str] = set()  # of all messages so far
        self._binding = Binding()
        self._at = self.builder.program
        self._matcher = matcher
        self._lines = 0
        self._last_line = ""
        # what facts.py keeps, and a second message or an edge in the line
        literals = [*(fact.contains for fact in FACTS), "NCCL"]
        literals += [text for _, text, _ in p.UNREAD]
        literals += matcher.literals if matcher is not None else ()
        bare = sorted({literal.translate(NO_DIGITS) for literal in literals})
        self._may_matter = re.compile("|".join(map(re.escape, bare)))
        # what stands before INFO, where it is a process only -> its host, and where its messages belong
        self._processes: dict[str, tuple[str, Evidence]] = {}
        self._transports: dict[str, Transport] = {}  # as printed
        self._messages: dict[str, list[FoundFact]] = {}  # texts -> facts, where the matcher knows none
        self._silent: set[str] = set()  # texts without digits that hold nothing

    def block(self, block: bytes) -> None:
        """Take a block of whole lines."""
        lines = block.decode("utf-8", "replace").split("\n")
        if not lines[-1]:
            lines.pop()
        number = self._lines
        processes, transports, edge = self._processes, self._transports, p.EDGE.fullmatch
        for line in lines:
            number += 1
            head, info, body = line.partition(INFO)
            if info and (process := processes.get(head)) is not None:
                host, evidence = process
                match = edge(body)
                if match is None:
                    if self._is_known(body, host, evidence, number, line):
                        evidence.messages += 1
                        continue
                else:
                    transport = transports.get(match["transport"])
                    if transport is not None and transport.label in evidence.edges:
                        evidence.messages += 1
                        evidence.known_edge(transport, match["direction"] or "", host, *link(match))
                        continue
            if line:
                self._line(line, number)
        self._lines = number
        self._last_line = next((x for x in reversed(lines) if x.strip()), self._last_line)

    def result(self, source: Source) -> ParsedLog:
        """Everything that was read from SOURCE."""
        self.builder.finish()
        self._list_ranks()
        return ParsedLog(
            runs=self.builder.runs,
            dangling=self.builder.dangling,
            evidence=self._binding.whole(),
            proofs=self._binding.proofs(self.builder.runs),
            known_lines=self._matcher.known_lines() if self._matcher is not None else [],
            lines=self._lines,
            bytes=source.bytes,
            sha256=source.sha256.hexdigest(),
            truncated=source.truncated,
            long_lines=source.long_lines,
            last_line=clean(self._last_line[:MAX_TEXT])[:EVIDENCE_WIDTH],
        )

    def _is_known(self, body: str, host: str, evidence: Evidence, number: int, line: str) -> bool:
        """Take a message whose text is known, or holds nothing; False where it must be read in full."""
        facts = self._messages.get(body)
        if facts is not None:
            for fact, match in facts:
                fact.keep(evidence, match, host, number, line)
            return True
        words = body.translate(NO_DIGITS)
        if words in self._silent:
            return True
        # numbers are all that texts with the same words differ in
        if (
            len(words) <= MAX_REMEMBERED
            and self._may_matter.search(words) is None
            and p.PROCESS_SHAPE not in words
        ):
            _remember(self._silent)
            self._silent.add(words)
            return True
        return False

    def _line(self, line: str, number: int) -> None:
        """Take one line in full."""
        text = clean(line[:MAX_TEXT])
        if not text:
            return
        message = find_message(text)
        if message is None:
            self._plain(text, number)
            return
        start, host = self._unglue(text, message, 0)
        alone = message.level == "INFO" and not text[:start].strip()
        if text[:start].strip():
            self._plain(text[:start], number)
        while message is not None:
            following = find_message(text, message.end)
            end, next_host = len(text), ""
            if following is not None:
                end, next_host = self._unglue(text, following, message.end)
                alone = False
            body = text[message.end : end].strip()
            evidence = self._evidence(host, message.pid)
            facts = self._message(evidence, message.level, host, body, number, text[start:end])
            recognized = self._matcher is not None and self._matcher.look(text[start:end], number)
            if alone and host and not recognized:
                self._know(line, host, evidence, facts)
            message, start, host = following, end, next_host

    def _evidence(self, host: str, pid: str | None) -> Evidence:
        """Where a message of a process belongs."""
        return self._binding.evidence(host, None if pid is None else whole(pid), *self._at)

    def _message(
        self, evidence: Evidence, level: str, host: str, body: str, line: int, text: str
    ) -> list[FoundFact]:
        """Take one INFO or WARN message of a process on HOST ('' where it was not printed).

        Returns the facts in it, which another process may state in the same words.
        """
        evidence.messages += 1
        if host and len(self.hosts) < KEEP_HOSTS:
            self.hosts.add(host)
            evidence.hosts.add(host)
        if level == "WARN":
            evidence.keep("warnings", body, line, text)
        elif (edge := read_edge(body)) is not None:
            evidence.edge(edge, host, line, text)
            return []
        if p.VIA_TRANSPORT.search(body) is not None:
            evidence.keep("unread_edges", body, line, text)
        elif p.PROCESS.search(body) is not None:
            evidence.keep("unread_messages", body, line, text)
        found = find(body)
        for fact, match in found:
            fact.keep(evidence, match, host, line, text)
        return found

    def _plain(self, text: str, number: int) -> None:
        """Take a text that is not a message of NCCL."""
        self.builder.add(text, number)
        if self.builder.listed:
            self._list_ranks()
        at = self.builder.program
        if at[0] is not self._at[0] or at[1] != self._at[1]:
            self._at = at
            self._processes.clear()
        for kind, value in plain_facts(text):
            self._evidence("", None).keep(kind, value, number, text)
        if self._matcher is not None:
            self._matcher.look(text, number)

    def _list_ranks(self) -> None:
        for rank, program in self.builder.listed:
            self._binding.rank(rank.host, rank.pid, program)
        self.builder.listed.clear()
        self._processes.clear()

    def _know(self, line: str, host: str, evidence: Evidence, facts: list[FoundFact]) -> None:
        """Remember the parts of LINE, which is one INFO message of a process on HOST and nothing else."""
        head, _, body = line.partition(INFO)
        if len(line) > MAX_REMEMBERED or ROW_BLANKS in head:
            return
        _remember(self._processes)
        self._processes[head] = host, evidence
        edge = read_edge(body)
        if edge is None:
            _remember(self._messages)
            self._messages[body] = facts
        else:
            _remember(self._transports)
            self._transports[body.rpartition(" via ")[2]] = edge.transport

    def _unglue(self, text: str, message: Message, after: int) -> tuple[int, str]:
        """Where a message begins, and its host: text behind AFTER may stick to the host's name.

        `float     sum      -1gcn151:1904979:...`: a row was interrupted right behind its root.
        """
        start, host = message.start, message.host or ""
        if not host or not text[after:start].strip():
            return start, host
        end = message.host_end
        first = max(after, text.rfind(" ", 0, end) + 1, text.rfind("\t", 0, end) + 1)
        glued = text[first:end]
        ends = (glued[i:] for i in range(max(0, len(glued) - MAX_HOST), len(glued)))
        known = (x for x in ends if x in self.hosts or x in self.builder.hosts)
        if (found := next(known, None)) is not None:
            host = found
        elif p.ROW_START.search(text[after:start]) and (digits := GLUED_NUMBER.match(glued)) is not None:
            host = glued[digits.end() :]
        return end - len(host), host


def _remember(known: dict[str, Any] | set[str]) -> None:
    """Make room in what is remembered."""
    if len(known) >= REMEMBERED:
        known.clear()
