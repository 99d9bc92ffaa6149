"""The lab ends its own processes and no others."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lab.hosts import processes


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


def test_a_recorded_process_is_found_again_and_ended(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    processes.record(tmp_path / "record.json", sleeper.pid)
    found = processes.recorded(tmp_path / "record.json")
    assert found is not None
    processes.end(found)
    assert not processes.runs(found)
    assert processes.recorded(tmp_path / "record.json") is None


def test_another_process_that_got_the_same_pid_is_left_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    earlier = {"pid": sleeper.pid, "started": psutil.Process(sleeper.pid).create_time() - 60}
    (tmp_path / "record.json").write_text(json.dumps(earlier))
    assert processes.recorded(tmp_path / "record.json") is None


def test_a_process_without_a_record_is_found_by_its_whole_arguments(
    sleeper: subprocess.Popen[bytes],
) -> None:
    assert sleeper.pid in {process.pid for process in processes.find("sleep", "60")}
    assert sleeper.pid not in {process.pid for process in processes.find("sleep", "6")}
