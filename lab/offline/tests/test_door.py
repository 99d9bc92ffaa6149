"""Which official programs the lab replaces on a machine; for plugins see test_simulated.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab import offline
from lab.build import official


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing official is installed, and no download answers; returns its PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("BUSBAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BUSBAR_LAB_K3S", raising=False)
    monkeypatch.setattr(official, "reachable", lambda _: False)
    return tmp_path / "bin"


def install(folder: Path, name: str) -> None:
    (folder / name).touch(mode=0o755)


def needed() -> list[str]:
    return [tool.name for tool in offline.missing_tools()]


def test_where_nothing_is_installed_and_no_download_answers_all_are_built(bare: Path) -> None:
    k3s = ["k3s-replacement", "containerd", "containerd-shim-runc-v2"]
    assert needed() == ["pulumi", "pulumi-language-python", *k3s, "helm"]


def test_what_is_installed_is_not_built(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pulumi", "helm"):
        install(bare, name)
    monkeypatch.setenv("BUSBAR_LAB_K3S", "/opt/k3s")
    assert needed() == []


def test_what_can_be_downloaded_is_not_built(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "k3s", lambda: bare / "k3s")
    monkeypatch.setattr(official, "pulumi", lambda: bare)
    assert needed() == ["helm"]


@pytest.mark.parametrize("name", ["command", "random"])
def test_a_plugin_that_is_no_go_module_has_a_replacement(name: str) -> None:
    assert os.access(offline.replacement_plugin(name), os.X_OK)
