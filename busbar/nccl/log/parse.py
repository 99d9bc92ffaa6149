"""A log as a whole: tables, evidence and what was seen besides, in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from busbar.nccl.log import parallel
from busbar.nccl.log.reader import LogReader, ParsedLog
from busbar.nccl.log.scan import Scanner
from busbar.nccl.log.source import BLOCK, Source, SourceError, open_log

__all__ = ["ParsedLog", "as_bytes", "parse_blocks", "parse_file", "parse_lines"]


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
