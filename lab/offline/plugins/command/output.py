"""The two output streams of a running command: kept, kept in order together, and shown line by line."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lab.offline.plugins.sdk.resource import ProviderError
from lab.offline.plugins.sdk.values import Properties

# The official plugin shows output through a bufio.Scanner, which stops at a longer line: after that the
# command's writes block and the operation never ends. Here it is an error, so that the lab shows it.
LONGEST_SHOWN_LINE = 64 * 1024


class Output:
    """Collects what a command prints. Thread-safe for one thread per stream."""

    def __init__(self, show: Callable[[str], None], shown: frozenset[str]) -> None:
        self._show = show
        self._shown = shown
        self._lock = threading.Lock()
        self._streams: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._both = bytearray()
        self._line = bytearray()
        self._too_long = False

    def write(self, stream: str, data: bytes) -> None:
        """Take `data` from `stream` (stdout or stderr)."""
        with self._lock:
            self._streams[stream] += data
            self._both += data
            if stream not in self._shown:
                return
            self._line += data
            *lines, rest = bytes(self._line).split(b"\n")
            self._line = bytearray(rest)
            self._too_long = self._too_long or any(len(line) >= LONGEST_SHOWN_LINE for line in (*lines, rest))
        for line in lines:
            self._show(line.decode(errors="replace").removesuffix("\r"))

    def finish(self) -> None:
        """Show a last line that has no newline; raises ProviderError after a line that cannot be shown."""
        if self._line:
            self._show(self._line.decode(errors="replace"))
        if self._too_long:
            raise ProviderError(
                f"the command printed a line of {LONGEST_SHOWN_LINE} bytes or more with its output shown: "
                "the official command plugin hangs on that. Fix: set logging to none, or print shorter lines"
            )

    @property
    def both(self) -> str:
        """Both streams in the order in which they came, for the error text."""
        return self._both.decode(errors="replace")

    def outputs(self) -> Properties:
        """The resource's outputs; one trailing newline is taken off each."""
        return {
            name: bytes(data).decode(errors="replace").removesuffix("\n")
            for name, data in self._streams.items()
        }
