"""What is kept of a measurement, when it may be judged again, and what is missing of a log on its way."""

import io
import json
from pathlib import Path

import pytest
import zstandard

from busbar.judge import COUNT_LINE, FIRST_LINE, LAST_LINE
from busbar.judge.archive import Archive
from busbar.judge.collector import Recording

# More than the reader takes at a time, so that lines cross the border between two reads.
LINES = [*(b"line %d\n" % number for number in range(20_000)), b"y" * 200_000 + b"\n"]


def kept(archive: Archive, lines: list[bytes]) -> None:
    with archive.new_log() as sink:
        sink.write(zstandard.ZstdCompressor().compress(b"".join(lines)))


@pytest.mark.parametrize("lines", [LINES, [b"one\n", b"two"]], ids=["long", "no newline at its end"])
def test_a_whole_log_is_read_back_line_by_line(tmp_path: Path, lines: list[bytes]) -> None:
    archive = Archive(tmp_path / "dev" / "h100")
    kept(archive, lines)
    archive.mark_complete("u-1")
    assert (archive.complete_log_of, list(archive.log_lines())) == ("u-1", lines)


def test_a_log_that_was_removed_is_not_judged_again(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.mark_complete("u-1")
    assert archive.complete_log_of is None


@pytest.mark.parametrize("note", [None, "", "{", "[]"])
def test_a_log_without_a_note_that_it_was_read_to_its_end_is_not_judged_again(
    tmp_path: Path, note: str | None
) -> None:
    archive = Archive(tmp_path)
    kept(archive, LINES)
    if note is not None:
        (tmp_path / "source.json").write_text(note)
    assert archive.complete_log_of is None


def test_a_new_log_takes_back_the_word_that_the_former_one_is_whole(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    kept(archive, LINES)
    archive.mark_complete("u-1")
    with pytest.raises(KeyboardInterrupt), archive.new_log():
        raise KeyboardInterrupt
    assert archive.complete_log_of is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nccl.log.zst"]


def test_the_verdict_is_stored_as_text_for_people(tmp_path: Path) -> None:
    Archive(tmp_path / "new").save_verdict({"verdict": "pass", "busbw_gbps": 2.0})
    text = (tmp_path / "new" / "verdict.json").read_text()
    assert text.splitlines() == ["{", '  "busbw_gbps": 2.0,', '  "verdict": "pass"', "}"]
    assert json.loads(text) == {"verdict": "pass", "busbw_gbps": 2.0}


# ---- a log on its way to the judge
LINE = b"nccl-worker-0:21:31 [0] NCCL INFO Using network Socket\n"


def recorded(*lines: bytes) -> Recording:
    recording = Recording(io.BytesIO(), lambda _: None, lambda _: None)
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
    recording = Recording(io.BytesIO(), said.append, lambda _: None)
    assert sum(1 for _ in recording.tee([LINE] * 40_001)) == 40_001
    assert said == ["20000 lines, 1 MB of log so far", "40000 lines, 2 MB of log so far"]


def test_an_error_of_the_launcher_behind_an_unfinished_line_of_a_rank_is_read() -> None:
    lines = (Path(__file__).parent / "nccl/h200/no-route.log").read_bytes().splitlines(keepends=True)
    assert recorded(*lines).errors == ["all_reduce ended with exit code 14"]
