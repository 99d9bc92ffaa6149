"""A tool is built anew when what it is made from changes, and only then."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from busbar import versions
from lab import offline
from lab.build.go import MODULE, Tool


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    (tmp_path / "go.mod").write_text("module example\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "main.go").write_text("package main\n")
    return Tool("example", ".", tmp_path)


@pytest.mark.parametrize("name", ["go.mod", "inner/main.go", "inner/new.go", "inner/manifest.yaml"])
def test_a_changed_source_makes_another_key(tool: Tool, name: str) -> None:
    before = tool.key()
    (tool.module / name).write_text("changed")
    assert tool.key() != before


@pytest.mark.parametrize("name", ["inner/main_test.go", "README.md", "nested/main.go"])
def test_tests_prose_and_other_modules_do_not(tool: Tool, name: str) -> None:
    (tool.module / "nested").mkdir()
    (tool.module / "nested" / "go.mod").write_text("module other\n")
    before = tool.key()
    (tool.module / name).write_text("changed")
    assert tool.key() == before


@pytest.mark.parametrize(("module", "small"), [(".", "./small"), ("inner", "../small")])
def test_a_module_that_takes_the_place_of_another_makes_another_key(
    tool: Tool, module: str, small: str
) -> None:
    changed = replace(tool, module=tool.module / module)
    (changed.module / "go.mod").write_text(f"module example\n\nreplace example.org/large => {small}\n")
    (tool.module / "small").mkdir()
    (tool.module / "small" / "go.mod").write_text("module example.org/large\n")
    before = changed.key()
    (tool.module / "small" / "small.go").write_text("package large\n")
    assert changed.key() != before


def test_the_replacement_of_k3s_is_built_from_the_minor_release_that_it_reports() -> None:
    assert f"k8s.io/kubernetes {versions.K3S.rpartition('.')[0]}." in (MODULE / "go.mod").read_text()


def test_the_replacement_of_k3s_names_the_versions_of_the_one_module() -> None:
    required = re.compile(r"^\t(\S+) (v\S+)", re.MULTILINE)
    shared = set(required.findall((MODULE / "go.mod").read_text()))
    assert set(required.findall((offline.OFFLINE / "k3s/go.mod").read_text())) <= shared
