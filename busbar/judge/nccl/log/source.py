"""Bytes of a log as blocks of whole lines, in bounded memory: files, pipes, .gz, .zst.

A line longer than MAX_LINE is cut there, counted, and its rest dropped, so that a log without line ends
cannot fill the memory. Of compressed data that ends early or is damaged, what stands before that is read.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import cast

from busbar.zstd import ZstdError, ZstdFile

# the first bytes of what is not read: archives, other compressions, wide characters
UNREAD = {
    b"PK\x03\x04": "a zip archive", b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive", b"Rar!": "a RAR archive",
    b"BZh": "compressed by bzip2", b"\x04\x22\x4d\x18": "compressed by lz4",
    b"\xfd7zXZ\x00": "compressed by xz",
    b"<!DOCTYPE html": "a page of HTML", b"<html": "a page of HTML",
    b"\xff\xfe": "text in UTF-16", b"\xfe\xff": "text in UTF-16", b"\x00\x00\xfe\xff": "text in UTF-32",
}  # fmt: skip
# nccl-tests writes it with -J, and NCCL's own output is not in it
OWN_JSON = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"(?:start_time|args)"\s*:')
UNPACKED = 256 * 1024


def unread_form(head: bytes) -> str | None:
    """Return the form of a file that begins with HEAD and is not read; None where it may be a log."""
    if head[257:262] == b"ustar":
        return "a tar archive"
    if OWN_JSON.match(head) is not None:
        return "the JSON of nccl-tests"
    return next((form for magic, form in UNREAD.items() if head.startswith(magic)), None)


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

    def chunks(self, stream: io.BufferedReader) -> Iterator[bytes]:
        """Decompressed bytes of STREAM as they arrive; truncated data is read as far as possible."""
        magic = stream.peek(4)[:4]
        opened: io.BufferedReader | gzip.GzipFile | ZstdFile = stream
        if magic[:2] == b"\x1f\x8b":
            opened = gzip.GzipFile(fileobj=stream)
        elif magic == b"\x28\xb5\x2f\xfd":
            opened = ZstdFile(stream)
        try:
            # read() would lose its buffer if the data ends early
            while chunk := opened.read1(UNPACKED):
                yield chunk
        except EOFError as error:
            self.truncated = f"compressed data ends early: {error}"
        except (zlib.error, gzip.BadGzipFile, ZstdError) as error:
            self.truncated = f"compressed data is damaged: {error}"

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
            if not self.bytes and (form := unread_form(chunk)) is not None:
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


def open_log(path: str) -> io.BufferedReader:
    """Open FILE or, for '-', standard input. Raises SourceError with the reason."""
    if path == "-":
        return io.BufferedReader(cast(io.RawIOBase, sys.stdin.buffer))
    try:
        return open(path, "rb")
    except OSError as error:
        reason = f"{path}: open failed: {error.strerror}; give a launcher's log that may be read"
        raise SourceError(reason) from error
