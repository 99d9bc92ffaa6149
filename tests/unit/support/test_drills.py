"""A drill that passes is recorded, and no other one."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.drills import PROJECT, RECORD

DRILLS = """
import pytest
from tests.support.drills import count_requests

@pytest.mark.drill
def test_passes():
    count_requests(40, 3)

@pytest.mark.drill
def test_fails():
    assert False

@pytest.fixture
def not_taken_back():
    yield
    assert False

@pytest.mark.drill
def test_is_not_taken_back(not_taken_back):
    pass

@pytest.mark.drill(needs="a real K3s")
def test_is_skipped():
    pytest.skip("no K3s")
"""
OLD = [{"drill": f"test_site.py::test_{name}", "date": "2020-01-01"} for name in ("fails", "passes")]
COMMIT = "git init -q && git -c user.name=t -c user.email=t@example.com commit -q --allow-empty -m tests"


def test_a_drill_that_passes_replaces_its_line_and_no_other_result_does(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "test_site.py").write_text(DRILLS)
    (tmp_path / RECORD).write_text("".join(f"{json.dumps(line)}\n" for line in OLD))
    subprocess.run(COMMIT, shell=True, cwd=tmp_path, check=True)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.drills", "test_site.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    fails, passes = [json.loads(line) for line in (tmp_path / RECORD).read_text().splitlines()]
    assert fails == OLD[0]
    assert passes["drill"] == OLD[1]["drill"] and passes["date"] > "2020-01-01"
    assert passes["commit"].endswith("+changes") and (passes["requests"], passes["repeated"]) == (40, 3)
