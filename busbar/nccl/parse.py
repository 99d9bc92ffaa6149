"""A log as a whole: tables, evidence and what was seen besides, in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from busbar.nccl import parallel
from busbar.nccl import patterns as p
from busbar.nccl.clean import clean
from busbar.nccl.diagnosis import Findings
from busbar.nccl.evidence import Evidence
from busbar.nccl.records import Preamble, Run
from busbar.nccl.runs import RunBuilder
from busbar.nccl.scan import Scanner
from busbar.nccl.source import BLOCK, Source, SourceError, open_log

# nothing that is looked for is longer; rings of thousands of ranks are, and patterns must not crawl over them
MAX_TEXT = 8192
GLUED_NUMBER = re.compile(r"-?\d+(?=[A-Za-z])")


@dataclass
class ParsedLog:
    """Everything that the gates look at. `dangling` is a preamble that no table followed (a hang, a kill)."""

    runs: list[Run]
    dangling: Preamble | None
    evidence: Evidence
    findings: Findings
    lines: int = 0
    bytes: int = 0
    sha256: str = ""
    truncated: str | None = None
    long_lines: int = 0
    trailing_errors: list[tuple[int, str]] = field(default_factory=list)
    last_line: str = ""


class LogReader:
    """Feed lines (without their ends) to `line`, then call `result`."""

    def __init__(self) -> None:
        self.builder = RunBuilder()
        self.evidence = Evidence()
        self.findings = Findings()
        self.last_line = ""

    def line(self, raw: bytes, number: int) -> None:
        """Take one line in full."""
        text = clean(raw[:MAX_TEXT]).text
        if not text:
            return
        self.last_line = text[:400]
        message = p.find_message(text)
        if message is None:
            self.builder.add(text, number)
            self.evidence.bare(text, number)
        else:
            before, host = self._unglue(text, message)
            self.evidence.message(message["level"], host, message["body"], number, text)
            if before.strip():
                self.builder.add(before, number)
        self.findings.look(text, number)

    def result(self, source: Source, lines: int) -> ParsedLog:
        """Everything that was read from SOURCE."""
        self.builder.finish()
        return ParsedLog(
            runs=self.builder.runs,
            dangling=self.builder.dangling,
            evidence=self.evidence,
            findings=self.findings,
            lines=lines,
            bytes=source.bytes,
            sha256=source.sha256.hexdigest(),
            truncated=source.truncated,
            long_lines=source.long_lines,
            trailing_errors=self.builder.trailing_errors,
            last_line=self.last_line,
        )

    def _unglue(self, text: str, message: re.Match[str]) -> tuple[str, str]:
        """What stands before a message, and its host, where the text before it sticks to the host's name.

        `float     sum      -1gcn151:1904979:...`: a row was interrupted right behind its root.
        """
        before, host = text[: message.start()], message["host"] or ""
        if not host or not before.strip():
            return before, host
        end = message.end("host")
        start = max(text.rfind(" ", 0, end), text.rfind("\t", 0, end)) + 1
        glued = text[start:end]
        known = [h for h in self.evidence.hosts | self.builder.hosts if glued.endswith(h)]
        if known:
            host = max(known, key=len)
        elif p.ROW_START.search(before) is not None and (digits := GLUED_NUMBER.match(glued)) is not None:
            host = glued[digits.end() :]
        return text[:start] + glued[: len(glued) - len(host)], host


def parse_blocks(blocks: Iterable[bytes], source: Source) -> ParsedLog:
    """Read blocks of whole lines to the end, in this process."""
    reader, scanner = LogReader(), Scanner()
    lines = 0
    for block in blocks:
        for number, raw in scanner.block(block, lines + 1):
            reader.line(raw, number)
        lines += block.count(b"\n") + (not block.endswith(b"\n"))
    reader.evidence.merge(scanner.finish())
    return reader.result(source, lines)


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


def parse_lines(lines: Iterable[bytes | str]) -> ParsedLog:
    """Parse an iterable of lines."""
    source = Source()
    return parse_blocks(source.blocks(as_bytes(lines)), source)


def parse_file(path: str) -> ParsedLog:
    """Parse FILE or, for '-', standard input. Raises SourceError where it cannot be read."""
    source = Source()
    stream = open_log(path)
    try:
        if path != "-" and parallel.worthwhile(stream):
            reader = LogReader()
            return reader.result(source, parallel.parse(stream, source, reader))
        return parse_blocks(source.blocks(source.chunks(stream)), source)
    except (OSError, parallel.WorkerError) as error:
        raise SourceError(f"{path}: cannot be read to its end: {error}") from error
    finally:
        if path != "-":
            stream.close()
