"""Bytes of a log as blocks of whole lines, in bounded memory: files, pipes, .gz, .zst.

A line longer than MAX_LINE is cut there, counted, and its rest dropped, so that a log without line ends
cannot fill the memory.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from busbar.judge.nccl.log import packed

BLOCK = 256 * 1024  # fits the L2 cache: larger blocks are slower to split
MAX_LINE = 64 * 1024
MAX_BYTES = 4 * 2**30  # an endless input ends here


class SourceError(OSError):
    """A log that cannot be read; the message names the file and the reason."""

    exit_code = 64


class Source:
    """Counts and hashes the bytes that are read. `truncated`: the reason if reading ended early."""

    def __init__(self) -> None:
        self.bytes = 0
        self.sha256 = hashlib.sha256()
        self.truncated: str | None = None
        self.form: str | None = None  # what it is, in place of a log that is read
        self.long_lines = 0

    def chunks(self, stream: IO[bytes]) -> Iterator[bytes]:
        """Decompressed bytes of STREAM as they arrive; truncated data is read as far as possible."""
        try:
            yield from packed.chunks(stream)
        except packed.CutError as error:
            self.truncated = str(error)

    def blocks(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Blocks that end at a line end (the last one may not), counted and hashed."""
        counted = self._counted(chunks)
        tail = b""
        dropping = False
        for chunk in counted:
            if dropping:
                end = chunk.find(b"\n")
                if end < 0:
                    continue
                chunk, dropping = chunk[end:], False
            end = chunk.rfind(b"\n") + 1
            if end:
                yield tail + chunk[:end]
                tail = chunk[end:]
            else:
                tail += chunk
            if len(tail) > MAX_LINE:
                self.long_lines += 1
                tail, dropping = tail[:MAX_LINE], True
        if tail:
            yield tail

    def _counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if not self.bytes and (form := packed.unread_form(chunk)) is not None:
                self.form, self.bytes = form, len(chunk)
                return
            room = MAX_BYTES - self.bytes
            if len(chunk) > room:
                chunk = chunk[:room]
                self.truncated = f"it is longer than {MAX_BYTES // 2**20} MiB: the rest was not read"
            self.bytes += len(chunk)
            self.sha256.update(chunk)
            yield chunk
            if self.truncated:
                return


def open_log(path: str) -> IO[bytes]:
    """Open FILE or, for '-', standard input. Raises SourceError with the reason."""
    if path == "-":
        return sys.stdin.buffer
    try:
        if Path(path).is_dir():
            raise SourceError(f"{path}: is a directory; give the launcher's log file")
        return open(path, "rb", buffering=0)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{path}: open failed: {error.strerror}; check path and permissions") from error
