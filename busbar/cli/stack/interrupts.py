"""Ctrl-C during an update: first the running steps may end, then the engine stops, then it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

KILL_AFTER_SECONDS = 30
# A lost terminal and a cancelled CI job end an update as Ctrl-C does.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

GRACEFUL = "interrupted: running steps finish, no new ones start. Ctrl-C again stops them where they are."
FORCED = f"stopping now; the engine is killed if it has not ended in {KILL_AFTER_SECONDS} s."
KILLED = "killed the engine."


class Interrupts:
    """Takes SIGINT, SIGTERM and SIGHUP while entered, in the main thread.

    While a child runs, a signal is passed on to it; otherwise it raises KeyboardInterrupt. `count` is the
    number of signals so far. `say` prints one line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.count = 0
        self._say = say
        self._passed = 0
        self._starting = False
        self._child: subprocess.Popen[str] | None = None
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        self._former = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    @contextmanager
    def passed_on(self, start: Callable[[], subprocess.Popen[str]]) -> Iterator[subprocess.Popen[str]]:
        """Start a child in its own session, and pass signals on to it until the block ends."""
        self._passed = self.count
        self._starting = True
        try:
            self._child = start()
            if self.count > self._passed:
                self._pass_on()  # a signal that came while the child was being started
            yield self._child
        finally:
            self._starting, self._child = False, None

    def end_child(self) -> None:
        """Let the child end as after a first signal, without counting one."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self.count:
            return  # the shell reports a lost terminal, and the kernel again when the shell ends
        self.count += 1
        if self._child is not None:
            self._pass_on()
        elif not self._starting:
            raise KeyboardInterrupt

    def _pass_on(self) -> None:
        """Pass a signal on. The engine ends gracefully at the first SIGINT and at once at the second."""
        child, self._passed = self._child, self.count
        if child is None or child.poll() is not None:
            return
        if self.count <= 2:
            self._say(GRACEFUL if self.count == 1 else FORCED)
            child.send_signal(signal.SIGINT)
        if self.count == 2:
            killer = threading.Timer(KILL_AFTER_SECONDS, self._kill, [child])
            killer.daemon = True
            killer.start()
        elif self.count > 2:
            self._kill(child)

    def _kill(self, child: subprocess.Popen[str]) -> None:
        if child.poll() is None:
            self._say(KILLED)
            os.killpg(child.pid, signal.SIGKILL)
