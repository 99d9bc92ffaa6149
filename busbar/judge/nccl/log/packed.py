"""Decompresses a stream of gzip or Zstandard, recognized by the first bytes, not by the name.

Of data that ends early or is damaged, the bytes before that are returned, then CutError is raised.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from typing import IO, cast

from busbar.zstd import ZstdDecompressor, ZstdError

# the first bytes of what is not read: archives, other compressions, wide characters
UNREAD = {
    b"PK\x03\x04": "a zip archive", b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive", b"Rar!": "a RAR archive",
    b"BZh": "compressed by bzip2", b"\x04\x22\x4d\x18": "compressed by lz4",
    b"\xfd7zXZ\x00": "compressed by xz",
    b"\xff\xfe": "text in UTF-16", b"\xfe\xff": "text in UTF-16", b"\x00\x00\xfe\xff": "text in UTF-32",
}  # fmt: skip
# nccl-tests writes it with -J, and NCCL's own output is not in it
OWN_JSON = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"(?:start_time|args)"\s*:')
HEAD = 512  # bytes that tell the form
BLOCK = 256 * 1024
ZSTD_INPUT = 1024  # so that little data cannot become much memory


class CutError(Exception):
    """The compressed data is incomplete or damaged."""


def unread_form(head: bytes) -> str | None:
    """Return the form of a file that begins with HEAD and is not read; None where it may be a log."""
    if head[257:262] == b"ustar":
        return "a tar archive"
    if OWN_JSON.match(head) is not None:
        return "the JSON of nccl-tests"
    return next((form for magic, form in UNREAD.items() if head.startswith(magic)), None)


def chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """Plain bytes of STREAM. Raises CutError."""
    head = b""
    while len(head) < HEAD and (more := stream.read(HEAD - len(head))):
        head += more
    whole = cast(IO[bytes], _Prefixed(head, stream))
    if head[:2] == b"\x1f\x8b":
        return _buffered(gzip.GzipFile(fileobj=whole))
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return _zstd(whole)
    return iter(lambda: whole.read(BLOCK), b"")


def _buffered(opened: gzip.GzipFile) -> Iterator[bytes]:
    try:
        # read() would lose its buffer if the data ends early
        while chunk := opened.read1(BLOCK):
            yield chunk
    except EOFError as error:
        raise CutError(f"compressed data ends early: {error}") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise CutError(f"compressed data is damaged: {error}") from error


def _zstd(stream: IO[bytes]) -> Iterator[bytes]:
    frame = ZstdDecompressor()
    begun = False
    try:
        while given := stream.read(ZSTD_INPUT):
            while given:
                yield frame.decompress(given)
                begun, given = not frame.eof, frame.unused_data
                if frame.eof:
                    frame = ZstdDecompressor()
    except ZstdError as error:
        raise CutError(f"compressed data is damaged: {error}") from error
    if begun:
        raise CutError("compressed data ends early: a frame has no end")


class _Prefixed(io.RawIOBase):
    """A stream with its first bytes put back."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._head:
            size = size if size >= 0 else len(self._head)
            head, self._head = self._head[:size], self._head[size:]
            return head + self._rest.read(size - len(head))
        return self._rest.read(size)
