"""The command line with which the engine runs busbar on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from busbar.components.engine.local_command import busbar_command


def test_the_project_s_interpreter_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python"))
    assert shlex.split(busbar_command("preflight")) == ["./.venv/bin/python", "-m", "busbar", "preflight"]


def test_the_path_of_another_interpreter_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert shlex.split(busbar_command("nccl", "collect"))[0] == str(tmp_path / "python")
