"""The lab ends its own processes and no others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab import processes
from lab.processes import Process


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


def _of(child: subprocess.Popen[bytes]) -> Process:
    process = Process.of(child.pid)
    assert process is not None
    return process


def test_a_recorded_process_is_found_again_and_ended(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    processes.remember(tmp_path / "record.json", _of(sleeper))
    found = processes.recall(tmp_path / "record.json")
    assert found is not None
    found.end()
    assert not found.alive


def test_another_process_that_got_the_same_pid_is_left_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    earlier = replace(_of(sleeper), started=1)
    processes.remember(tmp_path / "record.json", earlier)
    assert processes.recall(tmp_path / "record.json") is None
    earlier.end()
    assert sleeper.poll() is None


def test_a_record_that_a_crash_cut_short_means_no_process(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"pid": 1')
    assert processes.recall(tmp_path / "record.json") is None


def test_a_process_without_a_record_is_found_by_its_whole_words(sleeper: subprocess.Popen[bytes]) -> None:
    assert _of(sleeper) in processes.find("sleep", "60")
    assert _of(sleeper) not in processes.find("sleep", "6")
