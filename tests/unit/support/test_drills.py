"""Drills record their passes, and a list says which have none."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support import drills
from tests.support.drills import PROJECT, RECORD

DRILLS = """
import pytest
from tests.support.drills import count_requests

@pytest.mark.drill
def test_passes():
    count_requests(40, 3)

@pytest.mark.drill
def test_passes_without_a_load():
    pass

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

def test_is_no_drill():
    pass
"""
LINE = {"commit": "0123abcd", "seconds": 61}


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.drills", "test_site.py", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    ).stdout


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=tests", "-c", "user.email=tests@example.com")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_a_drill_that_passes_replaces_its_line_and_no_other_result_does(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / ".gitignore").write_text("__pycache__\n.pytest_cache\n")
    (tmp_path / "test_site.py").write_text(DRILLS)
    old = {"drill": "test_site.py::test_passes", "date": "2020-01-01", **LINE}
    other = {"drill": "test_site.py::test_fails", "date": "2020-01-01", **LINE}
    (tmp_path / RECORD).write_text(f"{json.dumps(other)}\n{json.dumps(old)}\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "site: add drills")
    commit = git(tmp_path, "rev-parse", "--short=8", "HEAD")

    printed = run(tmp_path)

    lines = [json.loads(line) for line in (tmp_path / RECORD).read_text().splitlines()]
    known = [line["drill"].partition("::")[2] for line in lines]
    assert known == ["test_fails", "test_passes", "test_passes_without_a_load"]
    assert lines[0] == other
    assert lines[1].items() >= {"commit": commit, "seconds": 0, "requests": 40, "repeated": 3}.items()
    assert lines[1]["date"] > "2020-01-01"
    assert "requests" not in lines[2]
    assert f"passes written to {RECORD}: 2" in printed

    assert drills.commit(tmp_path) == commit
    (tmp_path / "product.py").write_text("")
    assert drills.commit(tmp_path) == f"{commit}+changes"
