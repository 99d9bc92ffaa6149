"""The launcher's log on its way to the judge: kept, counted, shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import zstandard

from busbar.manifests.launcher import FIRST_LINE, LAST_LINE
from busbar.nccl.log.clean import clean
from busbar.nccl.log.patterns import ROW, VALUE
from busbar.nccl.units import size

# An INFO log is text that repeats itself: 70 MB become 2.
_LEVEL = 6
_QUIET_LINES = 20_000
_MEASURING = re.compile(r"# busbar: (measuring \w+|\w+ ended with exit code \d+)")
_COMPLAINT = re.compile(
    r"# busbar: (\w+ ended with exit code [1-9].*|\w+ was ended: .*|no program .*|\S+ does not resolve .*)"
)


class Recording:
    """Passes lines on and writes them compressed into `sink`.

    Afterwards `missing` tells whether the launcher's first and last line were among them,
    and `complaints` holds what the launcher itself found wrong.
    """

    def __init__(self, sink: BinaryIO, say: Callable[[str], None]) -> None:
        self._sink = sink
        self._say = say
        self._first: bool | None = None
        self._last = False
        self.complaints: list[str] = []
        self.lines = 0
        self.bytes = 0

    @property
    def missing(self) -> list[str]:
        """What of the launcher's output was not among the lines, in words."""
        if self._first is None:
            return ["the log is empty"]
        ends = [] if self._first else ["the beginning of the launcher's log is missing"]
        return [*ends, *([] if self._last else ["the end of the launcher's log is missing"])]

    def through(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The same lines. The compressed stream is finished also where the reader stops early."""
        with zstandard.ZstdCompressor(level=_LEVEL).stream_writer(self._sink, closefd=False) as writer:
            for line in lines:
                writer.write(line)
                self._look_at(line)
                yield line

    def _look_at(self, line: bytes) -> None:
        self.lines += 1
        self.bytes += len(line)
        if self._first is None:
            self._first = line.startswith(FIRST_LINE.encode())
        if line.startswith(b"# busbar: "):
            self._last = self._last or line.startswith(LAST_LINE.encode())
            text = line.decode("utf-8", "replace").rstrip()
            if found := _MEASURING.match(text):
                self._say(found[1])
            if found := _COMPLAINT.match(text):
                self.complaints.append(found[1])
        elif row := row_in_words(line):
            self._say(row)
        elif self.lines % _QUIET_LINES == 0:
            self._say(f"{self.lines} lines, {self.bytes / 1e6:.0f} MB of log so far")


def row_in_words(line: bytes) -> str | None:
    """`8 GiB: 390.3 GB/s out of place, 390.2 GB/s in place` for a whole row of a table, else None."""
    found = ROW.search(clean(line.decode("utf-8", "replace")))
    if not found:
        return None
    values = found[4].split()[-8:]
    if len(values) < 8 or not all(VALUE.match(value) for value in values):
        return None
    return f"{size(int(found[1]))}: {values[2]} GB/s out of place, {values[6]} GB/s in place"
