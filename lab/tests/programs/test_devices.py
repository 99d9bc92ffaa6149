"""The device plugin and the operator simulator: their own tests, in Go."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "go" / "devices"


def test_the_device_simulators_pass_their_own_tests() -> None:
    if shutil.which("go") is None:
        pytest.skip("there is no `go` on PATH")
    done = subprocess.run(
        ["go", "test", "./..."], cwd=SOURCES, text=True, capture_output=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
