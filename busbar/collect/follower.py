"""Follow a container's log from its first byte to its last across broken connections.

The kubelet serves only the current log file and may stop following when it rotates
(kubernetes/kubernetes#59902, #115701); API servers and load balancers die. Every line is therefore requested
with its timestamp, a broken stream is reopened one second before the last line received, and repeated lines
are recognised. A reconnection without a repeated line is counted as a gap: lines may be lost there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from datetime import datetime, timedelta

from busbar.judge.collector import LogLost
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.wait import Deadline, ProgressCallback

RETRY_SECONDS = 1.0
# The log of a container that has ended is available at once or never.
MAX_REFUSALS = 5
_OVERLAP_SECONDS = 1
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d) ?")


class LogFollower:
    """Follows a container that runs once. `gaps` of its `reconnections` may have lost lines."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        pod: str,
        container: str,
        deadline: Deadline,
        progress: ProgressCallback,
    ) -> None:
        self._api = api
        self._pod = pod
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        self._container = container
        self._deadline = deadline
        self._progress = progress
        self._seen = _Recent()
        self._broken = False
        self.gaps = 0
        self.reconnections = 0

    @property
    def doubt(self) -> str | None:
        """Why lines may be missing, if they may."""
        if not self.gaps:
            return None
        return f"lines may be missing after {self.gaps} of {self.reconnections} reconnections"

    def lines(self) -> Iterator[bytes]:
        """The container's output, line by line, each with its newline, without timestamps.

        Ends when the container has ended and its whole log has been read. Raises LogLost when the pod
        is gone or the deadline passes, and ApiError when the API refuses for good.
        """
        refusals = 0
        while True:
            ended = self._has_ended()
            whole = ended is not None
            try:
                # The state is read before the log: this read then contains everything up to the end.
                yield from self._read(follow=not ended)
            except ApiError as error:
                # 400: the container has not started. 404: it is not known yet, or the pod is gone.
                if not (error.transient or error.status in (400, 404)):
                    raise
                whole = False
                refusals += bool(ended and not error.transient)
                if refusals >= MAX_REFUSALS:
                    raise LogLost(f"the log of pod {self._pod} is not available: {error.reason}") from None
                if error.status != 400 and not self._broken:
                    self._broken = True
                    self._progress(f"log connection failed, retrying: {error}")
            if ended and whole:
                return
            if self._deadline.passed:
                raise LogLost(f"timed out after {self._deadline.seconds:.0f} s: pod {self._pod} still ran")
            self._deadline.pause(RETRY_SECONDS)

    def _has_ended(self) -> bool | None:
        """Return whether the container has ended; None where the API is not responding just now."""
        try:
            pod = self._api.get(self._path)
        except ApiError as error:
            if error.not_found:
                raise LogLost(f"pod {self._pod} was deleted before its log was read to the end") from None
            if not error.transient:
                raise
            return None
        return has_ended(pod, self._container)

    def _read(self, *, follow: bool) -> Iterator[bytes]:
        query = {"container": self._container, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        overlap = self._seen.overlap()
        if overlap.since:
            query["sinceTime"] = overlap.since
            self.reconnections += 1
        with closing(_stream(self._api, f"{self._path}/log", query)) as chunks:
            for stamp, second, line in _stamped_lines(chunks, final=not follow):
                if overlap.knows(second, stamp, line):
                    continue
                if overlap.nothing_matched:
                    self.gaps += 1
                    overlap.nothing_matched = False
                if self._broken:
                    self._progress("log connection restored")
                    self._broken = False
                self._seen.add(second, stamp, line)
                yield line
                if self._deadline.passed:
                    raise LogLost(
                        f"timed out after {self._deadline.seconds:.0f} s: pod {self._pod} was still writing"
                    )


def has_ended(pod: JsonObject, container: str) -> bool:
    """Return whether the container of that name has run and ended."""
    phase = (pod.get("status") or {}).get("phase")
    return phase in ("Succeeded", "Failed") or "terminated" in _state(pod, container)


def has_started(pod: JsonObject, container: str) -> bool:
    """Return whether there can be a log, because the container of that name runs or has ended."""
    state = _state(pod, container)
    return "running" in state or "terminated" in state


def _state(pod: JsonObject, container: str) -> JsonObject:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each.get("state") or {} for each in statuses if each.get("name") == container), {})


def _stream(api: Api, path: str, query: dict[str, str]) -> Generator[bytes, None, None]:
    # A generator, so that closing() reaches the connection even where `api` returns a plain iterator.
    yield from api.stream(path, **query)


def _stamped_lines(chunks: Iterator[bytes], *, final: bool) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(timestamp, its whole second with zone, line) of each line; lines of the kubelet itself are dropped.

    A last line without a newline counts only where the container has ended (`final`): else it is unfinished.
    """
    rest = b""
    for chunk in chunks:
        *full, rest = (rest + chunk).split(b"\n")
        for line in full:
            yield from _stamped_line(line + b"\n")
    if final:
        yield from _stamped_line(rest)


def _stamped_line(line: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    if found := _STAMP.match(line):
        yield found[0], found[1] + found[2], line[found.end() :]


class _Recent:
    """The lines of the last seconds, by second: enough to recognise repeated lines."""

    def __init__(self) -> None:
        self._by_second: dict[bytes, Counter[int]] = {}

    def add(self, second: bytes, stamp: bytes, line: bytes) -> None:
        if second not in self._by_second:
            self._by_second[second] = Counter()
            # stdout and stderr are stamped separately and may swap places: keep one second more.
            for old in sorted(self._by_second)[: -_OVERLAP_SECONDS - 2]:
                del self._by_second[old]
        self._by_second[second][hash((stamp, line))] += 1

    def overlap(self) -> _Overlap:
        if not self._by_second:
            return _Overlap(None, {})
        last = datetime.fromisoformat(max(self._by_second).decode())
        since = (last - timedelta(seconds=_OVERLAP_SECONDS)).isoformat().replace("+00:00", "Z")
        return _Overlap(since, {second: Counter(lines) for second, lines in self._by_second.items()})


class _Overlap:
    """The lines that a reopened stream may repeat, each as often as it was received."""

    def __init__(self, since: str | None, known: dict[bytes, Counter[int]]) -> None:
        self.since = since
        self._known = known
        self.nothing_matched = since is not None

    def knows(self, second: bytes, stamp: bytes, line: bytes) -> bool:
        lines = self._known.get(second)
        key = hash((stamp, line))
        if not lines or not lines[key]:
            return False
        lines[key] -= 1
        self.nothing_matched = False
        return True
