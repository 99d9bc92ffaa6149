"""A log as a whole: tables, evidence and what was seen besides, in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from busbar.nccl import patterns as p
from busbar.nccl.clean import clean
from busbar.nccl.diagnosis import Findings
from busbar.nccl.evidence import Evidence
from busbar.nccl.runs import Preamble, Run, RunBuilder
from busbar.nccl.source import Source, SourceError, open_log

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
        text = clean(raw).text
        if not text:
            return
        self.last_line = text[:400]
        message = p.MESSAGE.search(text) if "NCCL " in text else None
        if message is None:
            self.builder.add(text, number)
            self.evidence.bare(text, number)
        else:
            before, host = self._unglue(text, message)
            self.evidence.message(message["level"], host, message["body"], number, text)
            if before.strip():
                self.builder.add(before, number)
        self.findings.look(text, number)

    def _unglue(self, text: str, message: re.Match[str]) -> tuple[str, str]:
        """What stands before a message, and its host, where a row's last number sticks to the host's name.

        `float     sum      -1gcn151:1904979:...`: the row was interrupted right behind its root.
        """
        before, host = text[: message.start()], message["host"] or ""
        if not host or p.ROW_START.search(before) is None:
            return before, host
        start = max(text.rfind(" ", 0, message.end("host")), text.rfind("\t", 0, message.end("host"))) + 1
        glued = text[start : message.end("host")]
        known = [h for h in self.evidence.hosts | self.builder.hosts if glued.endswith(h)]
        if known:
            host = max(known, key=len)
        elif (digits := GLUED_NUMBER.match(glued)) is not None:
            host = glued[digits.end() :]
        return text[:start] + glued[: len(glued) - len(host)], host


def parse_blocks(blocks: Iterable[bytes], source: Source) -> ParsedLog:
    """Read blocks of whole lines to the end."""
    reader = LogReader()
    number = 0
    for block in blocks:
        for raw in block.split(b"\n"):
            number += 1
            if raw:
                reader.line(raw, number)
        if block.endswith(b"\n"):
            number -= 1
    reader.builder.finish()
    return ParsedLog(
        runs=reader.builder.runs,
        dangling=reader.builder.dangling,
        evidence=reader.evidence,
        findings=reader.findings,
        lines=number,
        bytes=source.bytes,
        sha256=source.sha256.hexdigest(),
        truncated=source.truncated,
        long_lines=source.long_lines,
        trailing_errors=reader.builder.trailing_errors,
        last_line=reader.last_line,
    )


def as_bytes(lines: Iterable[bytes | str]) -> Iterator[bytes]:
    """Lines of text or bytes, with or without their ends, as bytes with exactly one end each."""
    for line in lines:
        raw = line.encode("utf-8", "replace") if isinstance(line, str) else bytes(line)
        yield raw if raw.endswith(b"\n") else raw + b"\n"


def parse_lines(lines: Iterable[bytes | str]) -> ParsedLog:
    """Parse an iterable of lines."""
    source = Source()
    return parse_blocks(source.blocks(as_bytes(lines)), source)


def parse_file(path: str) -> ParsedLog:
    """Parse FILE or, for '-', standard input. Raises SourceError where it cannot be read."""
    source = Source()
    stream = open_log(path)
    try:
        return parse_blocks(source.blocks(source.chunks(stream)), source)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read to its end: {error}") from error
    finally:
        if path != "-":
            stream.close()
