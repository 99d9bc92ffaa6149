"""The lab lists its simulated and replaced parts; an official part takes precedence."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab import simulated
from lab.build import official
from lab.engine import environment


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing official: empty PATH, empty home of the engine, no download server."""
    monkeypatch.setenv("BUSBAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "pulumi-home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("BUSBAR_LAB_K3S", raising=False)
    monkeypatch.setattr(official, "reachable", lambda url: False)
    monkeypatch.setattr(environment, "REPLACEMENT_PLUGINS", tmp_path / "replacements")
    _program(tmp_path / "cache" / "programs" / "pulumi")
    return tmp_path


def _program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_on_a_bare_machine_every_part_of_the_lab_is_named(bare: Path) -> None:
    names = simulated.parts()
    assert {"K3s", "Pulumi CLI", "Pulumi plugin kubernetes", "Pulumi plugins command, random"} <= names.keys()
    assert all(names.values())


def test_a_k3s_of_the_users_own_is_not_a_replacement(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUSBAR_LAB_K3S", str(_program(bare / "k3s")))
    assert "K3s" not in simulated.parts()


def test_a_pulumi_on_path_wins_over_the_one_built_here(bare: Path) -> None:
    _program(bare / "bin" / "pulumi")
    assert environment.pulumi() == bare / "bin" / "pulumi"
    assert "Pulumi CLI" not in simulated.parts()


def test_only_plugins_that_are_not_installed_are_put_on_the_engines_path(bare: Path) -> None:
    _program(bare / "bin" / "pulumi-resource-random")
    _program(bare / "pulumi-home" / "plugins" / "resource-kubernetes-v4.25.0" / "pulumi-resource-kubernetes")
    assert environment.link_plugins() == ["command"]
    assert [link.name for link in environment.REPLACEMENT_PLUGINS.iterdir()] == ["pulumi-resource-command"]


def test_the_replacements_folder_on_path_does_not_make_them_official(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.link_plugins()
    monkeypatch.setenv("PATH", f"{environment.REPLACEMENT_PLUGINS}:{bare / 'bin'}")
    assert environment.link_plugins() == ["command", "random", "kubernetes"]


def test_engines_that_start_at_the_same_moment_all_find_the_replacements(bare: Path) -> None:
    with ThreadPoolExecutor(max_workers=8) as starts:
        linked = list(starts.map(lambda _: environment.link_plugins(), range(200)))
    assert linked == [["command", "random", "kubernetes"]] * 200
    assert {link.name for link in environment.REPLACEMENT_PLUGINS.iterdir()} == {
        f"pulumi-resource-{name}" for name in official.PLUGINS
    }


def test_a_running_engines_replacement_is_not_taken_away_by_the_next_one(bare: Path) -> None:
    environment.link_plugins()
    made = {link.name: link.lstat().st_ctime_ns for link in environment.REPLACEMENT_PLUGINS.iterdir()}
    environment.link_plugins()
    assert {link.name: link.lstat().st_ctime_ns for link in environment.REPLACEMENT_PLUGINS.iterdir()} == made
