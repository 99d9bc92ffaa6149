"""The launcher's log on its way to the judge: stored, counted, reported as progress."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import zstandard

from busbar.collect.judging import row_text
from busbar.kube.wait import ProgressCallback
from busbar.manifests.launcher import FIRST_LINE, LAST_LINE

# An INFO log repeats itself: 70 MB become 2.
_LEVEL = 6
_PROGRESS_LINES = 20_000
_MEASURING = re.compile(r"# busbar: (measuring \w+|\w+ ended with exit code \d+)")
_ERROR = re.compile(
    r"# busbar: (\w+ ended with exit code [1-9].*|\w+ timed out.*|no program .*|\S+ does not resolve .*)"
)


class Recording:
    """Passes lines on and writes them compressed into `sink`.

    Afterwards `missing` tells whether the launcher's first and last line were among them, and `errors` holds
    the errors that the launcher itself reported.
    """

    def __init__(self, sink: BinaryIO, progress: ProgressCallback) -> None:
        self._sink = sink
        self._progress = progress
        self._first: bool | None = None
        self._last = False
        self.errors: list[str] = []
        self.lines = 0
        self.bytes = 0

    @property
    def missing(self) -> list[str]:
        """The parts of the launcher's output that were not among the lines, one sentence each."""
        if self._first is None:
            return ["the log is empty"]
        ends = [] if self._first else ["the beginning of the launcher's log is missing"]
        return [*ends, *([] if self._last else ["the end of the launcher's log is missing"])]

    def tee(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The same lines. The compressed stream is finished also where the reader stops early."""
        with zstandard.ZstdCompressor(level=_LEVEL).stream_writer(self._sink, closefd=False) as writer:
            for line in lines:
                writer.write(line)
                self._inspect(line)
                yield line

    def _inspect(self, line: bytes) -> None:
        self.lines += 1
        self.bytes += len(line)
        if self._first is None:
            self._first = line.startswith(FIRST_LINE.encode())
        if line.startswith(b"# busbar: "):
            self._last = self._last or line.startswith(LAST_LINE.encode())
            text = line.decode("utf-8", "replace").rstrip()
            if found := _MEASURING.match(text):
                self._progress(found[1])
            if found := _ERROR.match(text):
                self.errors.append(found[1])
        elif row := row_text(line):
            self._progress(row)
        elif self.lines % _PROGRESS_LINES == 0:
            self._progress(f"{self.lines} lines, {self.bytes / 1e6:.0f} MB of log so far")
