"""What needs a real K3s is skipped without one, by name, and boots no host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.topology import PROJECT

DRILLS = """
import pytest

@pytest.fixture(scope="session")
def lab():
    print("hosts are booted")

@pytest.mark.usefixtures("real_k3s")
def test_restore(lab):
    pass

@pytest.mark.usefixtures("next_k3s")
def test_upgrade(lab, real_k3s, next_k3s):
    assert (real_k3s, next_k3s.version) == ("v1.34.3+k3s1", "v1.35.0+k3s3")
"""
FIRST, NEXT = {"BUSBAR_LAB_K3S": "v1.34.3+k3s1"}, {"BUSBAR_LAB_K3S_NEXT": "v1.35.0+k3s3"}


Run = Callable[[dict[str, str]], str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the drills above; the argument: variable -> the version of the K3s that it names."""

    def drills(named: dict[str, str]) -> str:
        (tmp_path / "test_drills.py").write_text(DRILLS)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BUSBAR_LAB")}
        for name, version in named.items():
            binary = tmp_path / name
            binary.write_text(f"#!/bin/sh\necho 'k3s version {version} (abcdef)'\n")
            binary.chmod(0o755)
            environment[name] = str(binary)
        # No download answers: that was found out a moment ago.
        unreachable = tmp_path / "cache" / "official" / "unreachable-github.com"
        unreachable.parent.mkdir(parents=True, exist_ok=True)
        unreachable.touch()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-v", "-s", "-rs", "--rootdir", str(tmp_path), "-p",
             "tests.support.lab", "test_drills.py"],
            cwd=tmp_path, text=True, capture_output=True, timeout=120, check=False,
            env={**environment, "PYTHONPATH": str(PROJECT), "BUSBAR_CACHE": str(tmp_path / "cache")},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return drills


def test_on_the_replacement_both_are_skipped_and_say_what_to_set(run: Run) -> None:
    printed = run({})
    assert "2 skipped" in printed and "hosts are booted" not in printed
    assert "test_drills.py::test_restore SKIPPED" in printed
    assert "needs a real K3s: set BUSBAR_LAB_K3S to one" in printed


def test_an_upgrade_needs_a_second_one(run: Run) -> None:
    printed = run(FIRST)
    assert "1 passed, 1 skipped" in printed
    assert "needs a real K3s after v1.34.3+k3s1: set BUSBAR_LAB_K3S_NEXT to one" in printed


def test_with_two_real_ones_all_run(run: Run) -> None:
    assert "2 passed" in run(FIRST | NEXT)
