"""A log on its way to the judge: what is missing of it, and how its growth is told."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from busbar.judge import COUNT_LINE, FIRST_LINE, LAST_LINE
from busbar.judge.collector import Recording

LINE = b"nccl-worker-0:21:31 [0] NCCL INFO Using network Socket\n"


def no_text(line: bytes) -> None:
    return None


def recorded(*lines: bytes) -> Recording:
    recording = Recording(io.BytesIO(), lambda _: None, no_text)
    assert list(recording.tee(lines)) == list(lines)
    return recording


FIRST, LAST = f"{FIRST_LINE}\n".encode(), f"{LAST_LINE} 0\n".encode()


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        ([], ["the log is empty"]),
        ([FIRST, LAST], []),
        ([b"row\n", LAST], ["the beginning of the launcher's log is missing"]),
        ([b"row\n", FIRST, LAST], ["the beginning of the launcher's log is missing"]),
        ([FIRST, b"row\n"], ["the end of the launcher's log is missing"]),
        ([FIRST, LAST, b"late\n"], []),
    ],
)
def test_a_recording_tells_which_end_of_the_log_is_missing(lines: list[bytes], missing: list[str]) -> None:
    assert recorded(*lines).missing == missing


def test_a_count_that_cannot_be_read_is_not_a_count() -> None:
    recording = recorded(FIRST, f"{COUNT_LINE} many lines\n".encode(), LAST)
    assert (recording.counted, recording.missing) == (False, [])


@pytest.mark.parametrize(("more", "lost"), [(-1, False), (0, False), (1, True)])
def test_one_byte_less_than_the_launcher_counted_is_a_loss(more: int, lost: bool) -> None:
    count = f"{COUNT_LINE} 2 lines, {len(FIRST) + len(LINE) + more} bytes\n".encode()
    assert bool(recorded(FIRST, LINE, count, LAST).missing) is lost


def test_every_twenty_thousand_lines_without_a_row_are_told_once() -> None:
    said: list[str] = []
    recording = Recording(io.BytesIO(), said.append, no_text)
    assert sum(1 for _ in recording.tee([LINE] * 40_001)) == 40_001
    assert said == ["20000 lines, 1 MB of log so far", "40000 lines, 2 MB of log so far"]


def test_an_error_of_the_launcher_behind_an_unfinished_line_of_a_rank_is_read() -> None:
    lines = (Path(__file__).parent / "nccl/h200/no-route.log").read_bytes().splitlines(keepends=True)
    assert recorded(*lines).errors == ["all_reduce ended with exit code 14"]
