"""Waiting for a state of the cluster: one loop with a condition, a deadline, a poll interval and progress.

Time is passed in, so that a test of a 30-minute wait takes no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol, TypeVar

from busbar.exits import NoVerdict
from busbar.finding import Finding
from busbar.kube.client import ApiError

HEARTBEAT_SECONDS = 30.0
# K3s on the leader of etcd looks at all members every 15 s, and writes the condition EtcdIsVoter of their
# Nodes then (k3s-io/k3s pkg/etcd/etcd.go manageLearners): that of a restarted server may still be False.
LASTING_SECONDS = 60.0

ProgressCallback = Callable[[str], None]
Result = TypeVar("Result")


class Clock(Protocol):
    """A monotonic clock that can also wait."""

    def now(self) -> float:
        """Seconds since some fixed point."""

    def pause(self, seconds: float) -> None:
        """Wait between two looks at the cluster."""


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
        return self.clock.now() - self._start

    @property
    def left(self) -> float:
        """Seconds until the deadline; never negative."""
        return max(0.0, self.seconds - self.elapsed)

    @property
    def passed(self) -> bool:
        return self.left <= 0

    def pause(self, seconds: float) -> None:
        """Pause, but not beyond the deadline."""
        self.clock.pause(min(seconds, self.left))


@dataclass(frozen=True)
class Pending:
    """The condition does not hold yet. `poll_seconds` replaces the wait's own interval for the next look."""

    state: str
    poll_seconds: float | None = None


class TimedOut(NoVerdict):
    """The deadline passed. `state` is the last one seen, `error` the API's last answer if it was an error."""

    def __init__(self, seconds: float, state: str, error: ApiError | None) -> None:
        super().__init__(f"timed out after {seconds:.0f} s: {state}")
        self.state = state
        self.error = error


def wait_until(
    condition: Callable[[], Result | Pending],
    deadline: Deadline,
    *,
    poll_seconds: float,
    progress: ProgressCallback | None = None,
    retry_on: Callable[[ApiError], bool] = attrgetter("transient"),
) -> Result:
    """Call `condition` until it returns something other than Pending, and return that.

    It is called at least once, and once more at the deadline. `progress` gets one line per change of state
    and one every 30 s. An ApiError for which `retry_on` is true counts as Pending. Raises others, TimedOut.
    """
    shown, shown_at = "", 0.0
    while True:
        error: ApiError | None = None
        try:
            found = condition()
        except ApiError as refused:
            if not retry_on(refused):
                raise
            error, found = refused, Pending(f"waiting for the API: {refused}")
        if not isinstance(found, Pending):
            return found
        elapsed = deadline.elapsed
        if progress and (found.state != shown or elapsed - shown_at >= HEARTBEAT_SECONDS):
            progress(f"{found.state} [{elapsed:.0f} s of {deadline.seconds:.0f} s]")
            shown, shown_at = found.state, elapsed
        if deadline.passed:
            raise TimedOut(deadline.seconds, found.state, error)
        deadline.pause(poll_seconds if found.poll_seconds is None else found.poll_seconds)


def lasting(
    look: Callable[[], Iterable[Finding]],
    clock: Clock,
    seconds: float = LASTING_SECONDS,
    *,
    poll_seconds: float = 2,
    progress: ProgressCallback | None = None,
    retry_on: Callable[[ApiError], bool] = attrgetter("transient"),
) -> list[Finding]:
    """Return what `look` still finds after so many seconds; nothing as soon as it finds nothing.

    By default after 60 s: a server that was restarted needs some seconds. The others are those of
    `wait_until`. Raises ApiError, and TimedOut where the API is not responding.
    """
    last: list[Finding] = []

    def is_over() -> bool | Pending:
        last[:] = look()
        return not last or Pending(str(last[0]))

    deadline = Deadline(clock, seconds)
    try:
        wait_until(is_over, deadline, poll_seconds=poll_seconds, progress=progress, retry_on=retry_on)
    except TimedOut as timeout:
        if timeout.error:
            raise
    return last
