"""Following a log to its last byte: broken connections, rotation, an API server that dies."""

from collections.abc import Callable, Iterator, Mapping

import pytest

from busbar.collect.follower import LogFollower, has_ended, has_started
from busbar.judge.collector import LogLost
from busbar.kube.client import ApiError
from busbar.kube.wait import Deadline
from tests.support.kube_cluster import Clock, Cluster, container, not_found, pod, unreachable

POD = "/api/v1/namespaces/ns/pods/launcher"
RUNNING = pod("launcher", "launcher", containerStatuses=[container({"running": {}})])
ENDED = pod("launcher", "launcher", phase="Succeeded", containerStatuses=[container({"terminated": {}})])
LINES = [b"line %d\n" % number for number in range(10)]


def stamped(number: int) -> bytes:
    """Two lines a second: the overlap of a reconnection holds lines with the same second."""
    return b"2026-01-01T00:00:%02d.%d00000000Z line %d\n" % (number // 2, 5 * (number % 2), number)


def serving(
    *numbers: int, then: Exception | None = None, tail: bytes = b""
) -> Callable[..., Iterator[bytes]]:
    def connection(query: Mapping[str, str]) -> Iterator[bytes]:
        # In pieces that do not end where lines end.
        data = b"".join(stamped(number) for number in numbers) + tail
        yield from (data[start : start + 7] for start in range(0, len(data), 7))
        if then:
            raise then

    return connection


def follower(api: Cluster, clock: Clock | None = None, said: list[str] | None = None) -> LogFollower:
    progress = said.append if said is not None else lambda _: None
    return LogFollower(api, "ns", "launcher", "nccl", Deadline(clock or Clock(), 100), progress)


class Running(Cluster):
    """A pod that runs for so many looks and has ended after that, with these connections to its log."""

    def __init__(self, looks: int, *logs: Callable[..., Iterator[bytes]]) -> None:
        super().__init__()
        self.looks, self.logs = looks, [*logs]

    def get(self, path: str, **query: str) -> dict[str, object]:
        self._fail()
        self.looks -= 1
        return RUNNING if self.looks >= 0 else ENDED


def test_a_finished_container_is_read_once_from_its_first_byte() -> None:
    api = Running(0, serving(*range(10)))
    assert list(follower(api).lines()) == LINES
    assert api.log_queries == [{"container": "nccl", "timestamps": "true"}]


def test_a_running_container_is_followed_and_an_ended_one_is_read_to_its_end() -> None:
    api = Running(1, serving(*range(4)), serving(*range(2, 10)))
    assert list(follower(api).lines()) == LINES
    assert [query.get("follow") for query in api.log_queries] == ["true", None]


AWAY, GONE = unreachable(), not_found("/log")
MOMENT = b"2026-01-01T00:00:05.%d00000000Z waiting\n"


@pytest.mark.parametrize(
    ("looks", "logs", "lines"),
    [
        (0, [serving(then=GONE)] * 4 + [serving(*range(10))], LINES),
        (0, [serving(then=AWAY)] * 20 + [serving(*range(10))], LINES),
        # The stream ends early.
        (2, [serving(*range(4)), serving(*range(2, 8)), serving(*range(6, 10))], LINES),
        # A stream that is opened again may serve more than was asked for: here the last three seconds.
        (1, [serving(*range(10), then=AWAY), serving(*range(4, 10))], LINES),
        # Equal lines of one moment, and of two.
        (0, [serving(1, 1, 1)], [LINES[1]] * 3),
        (1, [serving(1, 1, then=AWAY), serving(1, 1, 1, 2)], [LINES[1]] * 3 + [LINES[2]]),
        (1, [lambda _: iter([MOMENT % 1]), lambda _: iter([MOMENT % 1, MOMENT % 2])], [b"waiting\n"] * 2),
        # A line that was cut, one without an end, and one of the kubelet's own.
        (1, [serving(0, tail=stamped(1)[:-4]), serving(0, 1, 2)], LINES[:3]),
        (0, [serving(0, tail=stamped(1)[:-1])], [LINES[0], LINES[1][:-1]]),
        (0, [serving(0, tail=b"failed to watch file: too many open files\n")], LINES[:1]),
    ],
)
def test_each_line_of_the_program_is_read_once(
    looks: int, logs: list[Callable[..., Iterator[bytes]]], lines: list[bytes]
) -> None:
    reader = follower(Running(looks, *logs))
    assert (list(reader.lines()), reader.gaps) == (lines, 0)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_is_over_has_ended_though_its_container_has_no_state(phase: str) -> None:
    api = Cluster({POD: pod("launcher", "launcher", phase=phase)})
    api.logs = [serving(*range(10))]
    assert list(follower(api).lines()) == LINES


def test_a_container_that_has_not_started_is_waited_for_without_a_word() -> None:
    said: list[str] = []
    refused = serving(then=ApiError("GET", 400, "container is waiting to start"))
    api = Running(3, refused, refused, refused, serving(*range(10)))
    assert (list(follower(api, said=said).lines()), said) == (LINES, [])


def test_a_container_that_writes_without_end_is_left_at_the_deadline() -> None:
    clock = Clock()

    def endless(query: Mapping[str, str]) -> Iterator[bytes]:
        for number in range(10_000):
            clock.time += 1
            yield stamped(number)

    with pytest.raises(LogLost, match="timed out after 100 s: pod launcher was still writing"):
        list(follower(Running(1, endless), clock).lines())
    assert clock.time == 100


def test_an_api_that_does_not_tell_whether_the_container_has_ended_is_asked_again_after_the_log() -> None:
    api = Running(0, serving(*range(4)), serving(*range(2, 10)))
    api.failures = [unreachable()]
    assert list(follower(api).lines()) == LINES


def test_what_was_written_while_the_connection_was_broken_is_read_and_nothing_twice() -> None:
    broken = serving(*range(4), then=AWAY), serving(*range(2, 7), then=AWAY)
    api = Running(3, *broken, serving(*range(4, 10)), serving(*range(6, 10)))
    reader = follower(api)
    assert list(reader.lines()) == LINES
    assert (reader.gaps, reader.reconnections) == (0, 3)
    since = [query.get("sinceTime") for query in api.log_queries]
    assert since == [None, *(f"2026-01-01T00:00:0{second}Z" for second in (0, 2, 3))]


def test_a_broken_connection_is_told_once_and_so_is_its_end() -> None:
    said: list[str] = []
    api = Running(4, serving(0, then=AWAY), *[serving(then=AWAY)] * 3, serving(0, 1, 2))
    assert list(follower(api, said=said).lines()) == LINES[:3]
    assert said == ["log connection failed, retrying: GET /: connection refused", "log connection restored"]


def test_a_rotation_that_leaves_no_overlap_is_counted_as_a_gap() -> None:
    reader = follower(Running(1, serving(*range(4), then=AWAY), serving(*range(8, 10))))
    assert (list(reader.lines()), reader.gaps) == (LINES[:4] + LINES[8:], 1)


def test_a_log_in_another_time_zone_is_asked_for_in_it() -> None:
    line = b"2026-01-01T02:00:05.500000000+02:00 one\n"
    api = Running(1, lambda _: iter([line]), lambda _: iter([line, line.replace(b"one", b"two")]))
    assert list(follower(api).lines()) == [b"one\n", b"two\n"]
    assert api.log_queries[1]["sinceTime"] == "2026-01-01T02:00:04+02:00"


def test_the_deadline_ends_the_reading_of_a_container_that_never_ends() -> None:
    with pytest.raises(LogLost, match="timed out after 100 s: pod launcher still ran"):
        list(follower(Running(1000, *[serving(0)] * 200)).lines())


def test_a_log_that_an_ended_container_does_not_have_is_asked_for_five_times_in_four_seconds() -> None:
    api, clock = Running(0), Clock()
    with pytest.raises(LogLost, match="not available: container is waiting to start"):
        list(follower(api, clock).lines())
    assert (len(api.log_queries), clock.time) == (5, 4)


def test_credentials_that_are_refused_end_the_reading_at_once() -> None:
    with pytest.raises(ApiError, match="403"):
        list(follower(Running(1, serving(0, then=ApiError("GET", 403, "forbidden")))).lines())


@pytest.mark.parametrize(
    ("statuses", "started", "ended"),
    [
        (None, False, False),
        ([], False, False),
        ([{"name": "nccl"}], False, False),
        ([{"name": "nccl", "state": None}], False, False),
        ([container({"waiting": {}})], False, False),
        ([container({"running": {}})], True, False),
        ([container({"terminated": {}})], True, True),
        ([{"name": "sidecar", "state": {"terminated": {}}}], False, False),
        ([{"name": "sidecar", "state": {"terminated": {}}}, container({"running": {}})], True, False),
    ],
)
def test_a_container_has_started_or_ended_by_its_state(statuses: object, started: bool, ended: bool) -> None:
    launcher = pod("launcher", "launcher", containerStatuses=statuses)
    assert (has_started(launcher, "nccl"), has_ended(launcher, "nccl")) == (started, ended)
