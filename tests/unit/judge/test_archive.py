"""What is kept of a measurement on this machine, and when it may be judged again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from busbar.judge.archive import Archive

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


def test_a_log_that_was_not_read_to_its_end_is_not_judged_again(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    kept(archive, LINES)
    assert archive.complete_log_of is None


def test_a_log_that_was_removed_is_not_judged_again(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.mark_complete("u-1")
    assert archive.complete_log_of is None


@pytest.mark.parametrize("note", ["", "{", "[]"])
def test_a_log_whose_note_is_damaged_is_not_judged_again(tmp_path: Path, note: str) -> None:
    archive = Archive(tmp_path)
    kept(archive, LINES)
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
