"""Damaged files of a file backend: which lock is removed, and which backup is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from busbar.cli.stack import recovery
from busbar.cli.stack.recovery import StateFiles


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateFiles:
    monkeypatch.setattr(recovery, "SETTLE_SECONDS", 0)
    for name in ("locks/organization/busbar/dev", "stacks/busbar", "backups/busbar/dev"):
        (tmp_path / ".pulumi" / name).mkdir(parents=True)
    return StateFiles(tmp_path / ".pulumi", "busbar", "dev")


def _write(files: StateFiles, path: str, text: str, age: int = 0) -> Path:
    made = files.folder / path
    made.write_text(text)
    os.utime(made, (1e9 - age, 1e9 - age))
    return made


@pytest.mark.parametrize(
    "url", ["file:///srv/state", "file://~/state", "file://./state", "file:///a%20b?x=1"]
)
def test_a_file_backend_names_its_folder(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    expected = {
        "file:///srv/state": Path("/srv/state/.pulumi"),
        "file://~/state": Path("/home/me/state/.pulumi"),
        "file://./state": tmp_path / "state/.pulumi",
        "file:///a%20b?x=1": Path("/a b/.pulumi"),
    }
    assert recovery.folder_of(url, tmp_path) == expected[url]


@pytest.mark.parametrize("url", ["https://api.pulumi.com", "s3://bucket/state"])
def test_another_backend_has_no_folder(url: str, tmp_path: Path) -> None:
    assert recovery.folder_of(url, tmp_path) is None


@pytest.mark.parametrize("text", ["", '{"pid": 7}'])
def test_a_lock_in_writing_stays(files: StateFiles, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = _write(files, "locks/organization/busbar/dev/1.json.2.tmp", "")
    # Another writer, between the two looks.
    monkeypatch.setattr("time.sleep", lambda _: _write(files, str(lock), text, age=1))
    assert files.remove_empty_locks() == []
    assert lock.exists()


def test_a_lock_with_a_holder_stays_and_an_empty_one_beside_it_goes(files: StateFiles) -> None:
    held = _write(files, "locks/organization/busbar/dev/1.json", '{"pid": 7}')
    empty = _write(files, "locks/organization/busbar/dev/2.json", "")
    assert files.remove_empty_locks() == [empty]
    assert held.exists()


def test_the_newest_backup_that_can_be_read_is_named(files: StateFiles) -> None:
    _write(files, "stacks/busbar/dev.json", "")
    _write(files, "stacks/busbar/dev.json.bak", '{"checkpoint"', age=1)
    _write(files, "backups/busbar/dev/dev.1.json", "{}", age=3)
    newest = _write(files, "backups/busbar/dev/dev.2.json", "{}", age=2)
    fix = files.repair()
    assert fix is not None and f" {newest} " in fix


def test_without_a_backup_the_fix_is_a_page_and_a_whole_state_has_none(files: StateFiles) -> None:
    _write(files, "stacks/busbar/dev.json", "")
    fix = files.repair()
    assert fix is not None and "busbar docs sites 'A lost state file'" in fix
    _write(files, "stacks/busbar/dev.json", "{}")
    assert files.repair() is None
