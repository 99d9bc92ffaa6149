"""Time as the waiting loops see it: handed in, so that a test of a 30-minute wait takes no time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds, and a pause that never outlasts a deadline by more than the pause itself."""

    def now(self) -> float:
        """Seconds since some fixed point."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait between two looks at the cluster."""
        ...


class SystemClock:
    """The machine's own monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class Deadline:
    """A point in time that a wait must not pass."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self._start = clock.now()

    @property
    def elapsed(self) -> float:
        """Seconds since the wait began."""
        return self.clock.now() - self._start

    @property
    def left(self) -> float:
        """Seconds until the deadline; never negative."""
        return max(0.0, self.seconds - self.elapsed)

    @property
    def passed(self) -> bool:
        """Whether the wait is over."""
        return self.left <= 0

    def pause(self, seconds: float) -> None:
        """Pause, but not beyond the deadline."""
        self.clock.pause(min(seconds, self.left))
