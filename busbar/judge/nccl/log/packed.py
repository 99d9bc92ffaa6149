"""Decompresses a stream of gzip, Zstandard or xz, recognized by the first bytes, not by the name.

Of data that ends early or is damaged, the bytes before that are returned, then CutError is raised.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import IO, cast

from busbar.zstd import ZstdDecompressor, ZstdError

# the first bytes of archives that hold several files, and of compressions that are not read
ARCHIVES = {
    b"PK\x03\x04": "zip", b"7z\xbc\xaf\x27\x1c": "7-Zip", b"Rar!": "RAR", b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
}  # fmt: skip
MAGIC = 6  # bytes that tell the compression
BLOCK = 256 * 1024
ZSTD_INPUT = 1024  # so that little data cannot become much memory


class CutError(Exception):
    """The compressed data is incomplete or damaged."""


def archive(head: bytes) -> str | None:
    """Return the kind of archive that begins with HEAD; None where it may be a log."""
    tar = "tar" if head[257:262] == b"ustar" else None
    return next((kind for magic, kind in ARCHIVES.items() if head.startswith(magic)), tar)


def chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """Plain bytes of STREAM as they arrive. Raises CutError."""
    head = stream.read(MAGIC)
    whole = cast(IO[bytes], _Prefixed(head, stream))
    if head[:2] == b"\x1f\x8b":
        return _buffered(gzip.GzipFile(fileobj=whole))
    if head == b"\xfd7zXZ\x00":
        return _buffered(lzma.LZMAFile(whole))
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return _zstd(whole)
    return iter(lambda: whole.read(BLOCK), b"")


def _buffered(opened: gzip.GzipFile | lzma.LZMAFile) -> Iterator[bytes]:
    try:
        # read() would lose its buffer if the data ends early
        while chunk := opened.read1(BLOCK):
            yield chunk
    except EOFError as error:
        raise CutError(f"compressed data ends early: {error}") from error
    except (zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
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
            return head
        return self._rest.read(size)
