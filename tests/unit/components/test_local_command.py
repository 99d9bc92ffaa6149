"""The command line with which the engine runs busbar on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from busbar.components.engine.local_command import busbar_command


def test_an_interpreter_inside_the_project_is_written_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python"))
    assert shlex.split(busbar_command("preflight")) == ["./.venv/bin/python", "-m", "busbar", "preflight"]


def test_an_interpreter_outside_the_project_is_written_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert shlex.split(busbar_command("nccl", "collect"))[0] == str(tmp_path / "python")
