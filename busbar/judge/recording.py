"""A job's log on its way to the judge: stored, counted, reported as progress."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from busbar.judge import COUNT_LINE, FIRST_LINE, LAST_LINE
from busbar.zstd import ZstdFile

_PROGRESS_LINES = 20_000
_MEASURING = re.compile(r"# busbar: (measuring \w+|\w+ ended with exit code \d+)")
_ERROR = re.compile(
    r"# busbar: (\w+ ended with exit code [1-9].*|\w+ timed out.*|no program .*|\S+ does not resolve .*)"
)
_COUNT = re.compile(rf"{COUNT_LINE} (\d+) lines, (\d+) bytes")


class Recording:
    """Passes lines on and writes them compressed into `sink`.

    Afterwards `missing` tells whether the lines are the launcher's whole output, from its first to its last
    line, as many as it counted. `counted`: whether the launcher printed its count; without it, missing lines
    may go unnoticed. `errors`: the errors that the launcher itself reported.

    `text_of`: the progress text of a line, or None. `cause_of_loss`: ends the message about lost lines.
    """

    def __init__(
        self,
        sink: BinaryIO,
        progress: Callable[[str], None],
        text_of: Callable[[bytes], str | None],
        cause_of_loss: str = "",
    ) -> None:
        self._sink = sink
        self._progress = progress
        self._text_of = text_of
        self._cause_of_loss = cause_of_loss
        self._first: bool | None = None
        self._last = False
        self._lost = ""
        self.counted = False
        self.errors: list[str] = []
        self.lines = 0
        self.bytes = 0

    @property
    def missing(self) -> list[str]:
        """The parts of the launcher's output that were not among the lines, one sentence each."""
        if self._first is None:
            return ["the log is empty"]
        ends = [] if self._first else ["the beginning of the launcher's log is missing"]
        ends += [] if self._last else ["the end of the launcher's log is missing"]
        return [*ends, self._lost] if self._lost else ends

    def tee(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the lines unchanged. The compressed stream is finished even if the reader stops early."""
        with ZstdFile(self._sink, "wb") as writer:
            for line in lines:
                writer.write(line)
                self._inspect(line)
                yield line

    def _inspect(self, line: bytes) -> None:
        if line.startswith(COUNT_LINE.encode()):
            self._compare(line.decode("utf-8", "replace"))
        self.lines += 1
        self.bytes += len(line)
        if self._first is None:
            self._first = line.startswith(FIRST_LINE.encode())
        # The last output of a rank may have no newline: the launcher's own line then stands behind it.
        if (at := line.find(b"# busbar: ")) >= 0:
            self._last = self._last or line.startswith(LAST_LINE.encode())
            text = line[at:].decode("utf-8", "replace").rstrip()
            if found := _MEASURING.match(text):
                self._progress(found[1])
            if found := _ERROR.match(text):
                self.errors.append(found[1])
        elif shown := self._text_of(line):
            self._progress(shown)
        elif self.lines % _PROGRESS_LINES == 0:
            self._progress(f"{self.lines} lines, {self.bytes / 1e6:.0f} MB of log so far")

    def _compare(self, line: str) -> None:
        """Compare the launcher's own count with the lines before this one."""
        found = _COUNT.match(line)
        if not found:
            return
        self.counted = True
        lines, size = int(found[1]), int(found[2])
        # More bytes than written are not a loss: a kubelet may stamp the parts of a very long line.
        if self.lines != lines or self.bytes < size:
            self._lost = (
                f"the launcher wrote {lines} lines ({size} bytes), {self.lines} lines ({self.bytes} bytes) "
                f"were read{self._cause_of_loss}"
            )
