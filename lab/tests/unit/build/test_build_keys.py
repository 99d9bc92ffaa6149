"""A tool is built anew when what it is made from changes, and only then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab import offline
from lab.build.go import Tool
from lab.build.tools import DRILL_TOOLS, TOOLS


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    (tmp_path / "go.mod").write_text("module example\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "main.go").write_text("package main\n")
    return Tool("example", ".", tmp_path)


@pytest.mark.parametrize(
    "name", ["go.mod", "inner/main.go", "inner/new.go", "build.sh", "inner/manifest.yaml"]
)
def test_a_changed_source_makes_another_key(tool: Tool, name: str) -> None:
    before = tool.key()
    (tool.module / name).write_text("changed")
    assert tool.key() != before


@pytest.mark.parametrize("name", ["inner/main_test.go", "README.md"])
def test_tests_and_prose_do_not(tool: Tool, name: str) -> None:
    before = tool.key()
    (tool.module / name).write_text("changed")
    assert tool.key() == before


def test_other_flags_make_another_key(tool: Tool) -> None:
    assert replace(tool, ldflags="-s").key() != tool.key()
    assert replace(tool, script=("build.sh", "v1.2.3")).key() != tool.key()


def test_every_tool_pins_its_versions_in_a_module_of_its_own() -> None:
    for tool in (*TOOLS, *DRILL_TOOLS, *offline.ENGINE, offline.K3S, offline.HELM):
        assert (tool.module / "go.mod").is_file(), tool.name
        assert (tool.module / "go.sum").is_file(), tool.name
