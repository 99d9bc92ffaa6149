"""The one waiting loop: when it looks, when it reports, when it gives up."""

from collections.abc import Callable

import pytest

from busbar.kube.client import ApiError
from busbar.kube.wait import Deadline, Pending, TimedOut, wait_until
from tests.support.kube_cluster import Clock, unreachable


def becomes(*states: object) -> Callable[[], object]:
    """A condition that returns (or raises) these, one per look; the last one for ever."""
    left = list(states)

    def look() -> object:
        state = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(state, Exception):
            raise state
        return state

    return look


def test_a_condition_that_holds_is_not_waited_for_even_after_the_deadline() -> None:
    clock = Clock()
    assert wait_until(becomes("there"), Deadline(clock, 10), poll_seconds=1) == "there"
    assert clock.time == 0
    assert wait_until(becomes("there"), Deadline(Clock(), 0), poll_seconds=1) == "there"


@pytest.mark.parametrize("found", [None, False, 0, ""])
def test_any_value_but_pending_ends_the_wait(found: object) -> None:
    assert wait_until(becomes(found), Deadline(Clock(), 10), poll_seconds=1) is found


def test_it_looks_once_more_at_the_deadline_and_then_reports_the_last_state() -> None:
    clock = Clock()
    looks: list[float] = []

    def look() -> Pending:
        looks.append(clock.time)
        return Pending("0/2")

    with pytest.raises(TimedOut, match=r"^timed out after 10 s: 0/2$") as timeout:
        wait_until(look, Deadline(clock, 10), poll_seconds=4)
    assert looks == [0, 4, 8, 10]
    assert (timeout.value.state, timeout.value.error) == ("0/2", None)


def test_progress_is_one_line_per_change_and_one_every_thirty_seconds() -> None:
    lines: list[str] = []
    condition = becomes(*[Pending("0/2")] * 8, *[Pending("1/2")] * 2, "2/2")
    wait_until(condition, Deadline(Clock(), 100), poll_seconds=5, progress=lines.append)
    assert lines == ["0/2 [0 s of 100 s]", "0/2 [30 s of 100 s]", "1/2 [40 s of 100 s]"]


def test_a_state_can_ask_for_another_interval() -> None:
    clock = Clock()
    wait_until(becomes(Pending("many", 9), Pending("few"), "ok"), Deadline(clock, 100), poll_seconds=2)
    assert clock.time == 11


def test_a_timeout_carries_the_error_only_where_the_last_look_failed() -> None:
    with pytest.raises(TimedOut) as failing:
        wait_until(becomes(Pending("0/2"), unreachable()), Deadline(Clock(), 10), poll_seconds=1)
    assert isinstance(failing.value.error, ApiError)
    with pytest.raises(TimedOut) as answered:
        wait_until(becomes(unreachable(), Pending("0/2")), Deadline(Clock(), 10), poll_seconds=1)
    assert answered.value.error is None


def test_an_error_that_waiting_cannot_change_is_raised_at_once() -> None:
    clock = Clock()
    with pytest.raises(ApiError, match="403"):
        wait_until(becomes(ApiError("GET", 403, "forbidden")), Deadline(clock, 10), poll_seconds=1)
    assert clock.time == 0


def test_the_caller_may_retry_other_errors_too() -> None:
    condition = becomes(ApiError("DELETE", 409, "changed"), "ok")
    found = wait_until(
        condition, Deadline(Clock(), 10), poll_seconds=1, retry_on=lambda error: error.conflict
    )
    assert found == "ok"
