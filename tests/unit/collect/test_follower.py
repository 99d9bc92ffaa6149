"""Following a log to its last byte: broken connections, rotation, an API server that dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from busbar.collect.follower import LogFollower, has_ended, has_started
from busbar.judge.collector import LogLost
from busbar.kube.client import ApiError
from busbar.kube.wait import Deadline
from tests.support.kube_cluster import Clock, Cluster, container, pod, unreachable

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


def follower(api: Cluster, deadline_seconds: float = 100) -> LogFollower:
    return LogFollower(api, "ns", "launcher", "nccl", Deadline(Clock(), deadline_seconds), lambda _: None)


class Ends:
    """A pod that runs for so many looks and has ended after that."""

    def __init__(self, api: Cluster, looks: int) -> None:
        api.get = self.get  # type: ignore[method-assign]
        self.looks = looks

    def get(self, path: str, **query: str) -> dict[str, object]:
        self.looks -= 1
        return RUNNING if self.looks >= 0 else ENDED


def test_a_finished_container_is_read_once_from_its_first_byte() -> None:
    api = Cluster({POD: ENDED})
    api.logs = [serving(*range(10))]
    assert list(follower(api).lines()) == LINES
    assert api.log_queries == [{"container": "nccl", "timestamps": "true"}]


def test_a_running_container_is_followed_and_an_ended_one_is_read_to_its_end() -> None:
    api = Cluster()
    Ends(api, looks=1)
    api.logs = [serving(*range(4)), serving(*range(2, 10))]
    assert list(follower(api).lines()) == LINES
    assert [query.get("follow") for query in api.log_queries] == ["true", None]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_is_over_has_ended_though_its_container_has_no_state(phase: str) -> None:
    api = Cluster({POD: pod("launcher", "launcher", phase=phase)})
    api.logs = [serving(*range(10))]
    assert list(follower(api).lines()) == LINES


def test_a_container_that_has_not_started_is_waited_for_without_a_word() -> None:
    said: list[str] = []
    api = Cluster()
    Ends(api, looks=3)
    refused = ApiError("GET", 400, "container is waiting to start")
    api.logs = [serving(then=refused)] * 3 + [serving(*range(10))]
    reader = LogFollower(api, "ns", "launcher", "nccl", Deadline(Clock(), 100), said.append)
    assert list(reader.lines()) == LINES
    assert said == []


def test_a_refusal_that_passes_in_time_does_not_lose_the_log() -> None:
    api = Cluster({POD: ENDED})
    api.logs = [serving(then=ApiError("GET", 404, "not found"))] * 4 + [serving(*range(10))]
    assert list(follower(api).lines()) == LINES


def test_a_container_that_writes_without_end_is_left_at_the_deadline() -> None:
    clock = Clock()
    api = Cluster({POD: RUNNING})

    def endless(query: Mapping[str, str]) -> Iterator[bytes]:
        for number in range(10_000):
            clock.time += 1
            yield stamped(number)

    api.logs = [endless]
    reader = LogFollower(api, "ns", "launcher", "nccl", Deadline(clock, 100), lambda _: None)
    with pytest.raises(LogLost, match="timed out after 100 s: pod launcher was still writing"):
        list(reader.lines())
    assert clock.time == 100


def test_an_api_that_does_not_tell_whether_the_container_has_ended_is_asked_again_after_the_log() -> None:
    api = Cluster({POD: ENDED})
    api.failures = [unreachable()]
    api.logs = [serving(*range(4)), serving(*range(2, 10))]
    assert list(follower(api).lines()) == LINES


def test_what_was_written_while_the_connection_was_broken_is_read_and_nothing_twice() -> None:
    api = Cluster()
    Ends(api, looks=3)
    api.logs = [
        serving(*range(4), then=unreachable()),
        serving(*range(2, 7), then=unreachable()),
        serving(*range(4, 10)),
        serving(*range(6, 10)),
    ]
    reader = follower(api)
    assert list(reader.lines()) == LINES
    assert (reader.gaps, reader.reconnections) == (0, 3)
    assert [query.get("sinceTime") for query in api.log_queries] == [
        None,
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:02Z",
        "2026-01-01T00:00:03Z",
    ]


def test_a_broken_connection_is_told_once_and_so_is_its_end() -> None:
    said: list[str] = []
    api = Cluster()
    Ends(api, looks=4)
    api.logs = [serving(0, then=unreachable()), *[serving(then=unreachable())] * 3, serving(0, 1, 2)]
    deadline = Deadline(Clock(), 100)
    assert list(LogFollower(api, "ns", "launcher", "nccl", deadline, said.append).lines()) == LINES[:3]
    assert said == ["log connection failed, retrying: GET /: connection refused", "log connection restored"]


def test_equal_lines_of_one_moment_are_each_kept() -> None:
    api = Cluster({POD: ENDED})
    api.logs = [serving(1, 1, 1)]
    assert list(follower(api).lines()) == [LINES[1]] * 3


def test_equal_lines_of_one_moment_are_not_doubled_by_a_reconnection() -> None:
    api = Cluster()
    Ends(api, looks=1)
    api.logs = [serving(1, 1, then=unreachable()), serving(1, 1, 1, 2)]
    assert list(follower(api).lines()) == [LINES[1]] * 3 + [LINES[2]]


def test_the_same_text_a_moment_later_is_another_line() -> None:
    api = Cluster()
    Ends(api, looks=1)
    line = b"2026-01-01T00:00:05.%d00000000Z waiting\n"
    api.logs = [lambda _: iter([line % 1]), lambda _: iter([line % 2])]
    assert list(follower(api).lines()) == [b"waiting\n"] * 2


def test_a_line_cut_by_a_broken_connection_is_taken_whole_from_the_next() -> None:
    api = Cluster()
    Ends(api, looks=1)
    api.logs = [serving(0, tail=stamped(1)[:-4]), serving(0, 1, 2)]
    assert list(follower(api).lines()) == LINES[:3]


def test_a_last_line_without_a_newline_is_a_line() -> None:
    api = Cluster({POD: ENDED})
    api.logs = [serving(0, tail=stamped(1)[:-1])]
    assert list(follower(api).lines()) == [LINES[0], LINES[1][:-1]]


def test_a_rotation_that_leaves_no_overlap_is_counted_as_a_gap() -> None:
    api = Cluster()
    Ends(api, looks=1)
    api.logs = [serving(*range(4), then=unreachable()), serving(*range(8, 10))]
    reader = follower(api)
    assert list(reader.lines()) == LINES[:4] + LINES[8:]
    assert reader.gaps == 1


def test_an_api_server_that_dies_and_comes_back_costs_nothing() -> None:
    api = Cluster({POD: RUNNING})
    api.failures = [None, unreachable(), ApiError("GET", 502, "bad gateway")]
    api.logs = [serving(*range(5), then=unreachable())]
    reader = follower(api)
    lines = reader.lines()
    first = [next(lines) for _ in range(5)]
    api.logs = [serving(*range(3, 5), then=unreachable())] * 2 + [serving(*range(3, 10))]
    Ends(api, looks=1)
    assert first + list(lines) == LINES


def test_a_stream_that_ends_early_while_the_container_runs_is_opened_again() -> None:
    api = Cluster()
    Ends(api, looks=2)
    api.logs = [serving(*range(4)), serving(*range(2, 8)), serving(*range(6, 10))]
    assert list(follower(api).lines()) == LINES


def test_messages_of_the_kubelet_in_the_stream_are_not_output_of_the_program() -> None:
    api = Cluster({POD: ENDED})
    api.logs = [serving(0, tail=b"failed to watch file: too many open files\n")]
    assert list(follower(api).lines()) == LINES[:1]


def test_a_log_in_another_time_zone_is_asked_for_in_it() -> None:
    api = Cluster()
    Ends(api, looks=1)
    line = b"2026-01-01T02:00:05.500000000+02:00 one\n"
    api.logs = [lambda _: iter([line]), lambda _: iter([line, line.replace(b"one", b"two")])]
    assert list(follower(api).lines()) == [b"one\n", b"two\n"]
    assert api.log_queries[1]["sinceTime"] == "2026-01-01T02:00:04+02:00"


def test_a_deleted_pod_ends_the_reading_with_an_error() -> None:
    with pytest.raises(LogLost, match="launcher was deleted before its log was read"):
        list(follower(Cluster()).lines())


def test_the_deadline_ends_the_reading_of_a_container_that_never_ends() -> None:
    api = Cluster({POD: RUNNING})
    api.logs = [serving(0)] * 200
    with pytest.raises(LogLost, match="timed out after 100 s: pod launcher had not ended"):
        list(follower(api).lines())


def test_a_log_that_an_ended_container_does_not_have_is_asked_for_five_times_in_four_seconds() -> None:
    api, clock = Cluster({POD: ENDED}), Clock()
    reader = LogFollower(api, "ns", "launcher", "nccl", Deadline(clock, 100), lambda _: None)
    with pytest.raises(LogLost, match="not available: container is waiting to start"):
        list(reader.lines())
    assert (len(api.log_queries), clock.time) == (5, 4)


def test_an_api_that_is_away_for_long_does_not_lose_the_log_of_an_ended_container() -> None:
    api = Cluster({POD: ENDED})
    api.logs = [serving(then=unreachable())] * 20 + [serving(*range(10))]
    assert list(follower(api).lines()) == LINES


def test_credentials_that_are_refused_end_the_reading_at_once() -> None:
    api = Cluster({POD: RUNNING})
    api.logs = [serving(0, then=ApiError("GET", 403, "forbidden"))]
    with pytest.raises(ApiError, match="403"):
        list(follower(api).lines())


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
def test_a_container_has_started_when_it_runs_or_has_run_and_ended_when_it_has_run(
    statuses: object, started: bool, ended: bool
) -> None:
    launcher = pod("launcher", "launcher", containerStatuses=statuses)
    assert (has_started(launcher, "nccl"), has_ended(launcher, "nccl")) == (started, ended)


def test_lines_of_the_last_three_seconds_are_recognised_when_they_come_again() -> None:
    """A stream that is opened again may serve more than was asked for."""
    api = Cluster()
    Ends(api, looks=1)
    # Two lines per second: the first connection ends in second 4, the second one begins in second 2.
    api.logs = [serving(*range(10), then=ApiError("GET", None, "connection reset")), serving(*range(4, 10))]
    reader = follower(api)
    assert list(reader.lines()) == LINES
    assert reader.gaps == 0
