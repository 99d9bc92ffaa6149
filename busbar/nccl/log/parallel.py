"""Scan a large plain file with two processes; the lines that matter are read in full here, in order.

Each process takes every second segment, counts what repeats, and sends on the rest. A third thread hashes
the file meanwhile (hashlib gives up the interpreter's lock).
"""

from __future__ import annotations

import multiprocessing
import os
import stat
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import IO

from busbar.nccl.log.edges import Bulk
from busbar.nccl.log.reader import LogReader
from busbar.nccl.log.scan import Numbered, Scanner
from busbar.nccl.log.source import BLOCK, Source

SEGMENT = 16 * 2**20
SMALLEST = 48 * 2**20
WORKERS = 2
# numbers of lines travel as segment * SHIFT + line in the segment
SHIFT = 2**40


def worthwhile(stream: IO[bytes]) -> bool:
    """True for a large regular file that is neither compressed nor UTF-16, where processes can be forked."""
    status = os.fstat(stream.fileno())
    if multiprocessing.current_process().daemon:
        return False  # such a process may not have children
    if not stat.S_ISREG(status.st_mode) or status.st_size < SMALLEST or (os.cpu_count() or 1) < 2:
        return False
    head = os.pread(stream.fileno(), 4, 0)
    packed = head[:2] in (b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff") or head == b"\x28\xb5\x2f\xfd"
    return not packed and "fork" in multiprocessing.get_all_start_methods()


def lines_of(fd: int, index: int, size: int) -> Iterator[bytes]:
    """Chunks with the lines that begin in segment INDEX, whole."""
    position = _line_end(fd, index * SEGMENT - 1, size) if index else 0
    end = _line_end(fd, (index + 1) * SEGMENT - 1, size)
    while position < end:
        chunk = os.pread(fd, min(BLOCK, end - position), position)
        if not chunk:
            return
        position += len(chunk)
        yield chunk


def _line_end(fd: int, position: int, size: int) -> int:
    """Position behind the first line end at or after POSITION; SIZE where there is none."""
    while position < size:
        chunk = os.pread(fd, BLOCK, position)
        if not chunk:
            return size
        found = chunk.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(chunk)
    return size


def _work(fd: int, first: int, count: int, size: int, out: Connection) -> None:
    """Scan segments FIRST, FIRST + WORKERS, ..; send what each holds, and the Bulk at the end."""
    scanner = Scanner()
    for index in range(first, count, WORKERS):
        source, lines, full = Source(hashing=False), 0, list[Numbered]()
        for block in source.blocks(lines_of(fd, index, size)):
            full += scanner.block(block, index * SHIFT + lines)
            lines += block.count(b"\n") + (not block.endswith(b"\n"))
        out.send((lines, source.long_lines, full))
    out.send(scanner.finish())
    out.close()


class WorkerError(RuntimeError):
    """A scanning process ended early (killed, out of memory)."""


def parse(stream: IO[bytes], source: Source, reader: LogReader) -> int:
    """Feed READER the lines that matter of the regular file STREAM; returns how many lines there are.

    Fills SOURCE's bytes and hash. Raises WorkerError where a process ended early; nothing is kept then.
    """
    fd, size = stream.fileno(), os.fstat(stream.fileno()).st_size
    count = -(-size // SEGMENT)
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(WORKERS)]
    workers = [
        context.Process(target=_work, args=(fd, i, count, size, pipes[i][1]), daemon=True)
        for i in range(WORKERS)
    ]
    for worker, (_, sender) in zip(workers, pipes, strict=True):
        worker.start()
        sender.close()
    hashing = threading.Thread(target=_hash, args=(fd, size, source), daemon=True)
    hashing.start()
    try:
        return _collect([receiver for receiver, _ in pipes], count, source, reader)
    except EOFError as error:
        raise WorkerError("a scanning process ended early") from error
    finally:
        hashing.join()
        for worker, (receiver, _) in zip(workers, pipes, strict=True):
            receiver.close()
            if worker.is_alive():
                worker.terminate()
            worker.join()


def _collect(pipes: list[Connection], count: int, source: Source, reader: LogReader) -> int:
    first_line = [1]
    for index in range(count):
        lines, cut, full = pipes[index % WORKERS].recv()
        source.long_lines += cut
        for number, raw in full:
            reader.line(raw, first_line[index] + number % SHIFT)
        first_line.append(first_line[index] + lines)
    for pipe in pipes:
        bulk: Bulk = pipe.recv()
        for known in bulk.known.values():
            known.line = first_line[known.line // SHIFT] + known.line % SHIFT
        reader.evidence.merge(bulk)
    return first_line[-1] - 1


def _hash(fd: int, size: int, source: Source) -> None:
    while source.bytes < size:
        chunk = os.pread(fd, 4 * BLOCK, source.bytes)
        if not chunk:
            return
        source.sha256.update(chunk)
        source.bytes += len(chunk)
