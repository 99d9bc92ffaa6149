"""Locks, pending steps and damaged files that a killed update leaves behind."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pulumi import automation as auto
from pulumi.automation.errors import create_command_error

from busbar.cli.stack import recovery
from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.recovery import StateFiles, forget_completed, interrupted_steps, without_stale_lock

ROOT = "urn:pulumi:dev::busbar::pulumi:pulumi:Stack::busbar-dev"
HOST = "urn:pulumi:dev::busbar::command:remote:Command::server-1"


class Stack:
    """Records what is called; the first `failures` updates fail with `error`."""

    name = "dev"

    def __init__(self, error: auto.CommandError, failures: int = 1) -> None:
        self.error, self.failures = error, failures
        self.calls: list[str] = []

    def cancel(self) -> None:
        self.calls.append("cancel")

    def update(self) -> str:
        self.calls.append("update")
        if self.calls.count("update") <= self.failures:
            raise self.error
        return "done"


def _locked(*holders: tuple[str, int]) -> auto.CommandError:
    """What the file backend of Pulumi 3.259 prints of locks."""
    text = f"error: the stack is currently locked by {len(holders)} lock(s). Either wait for the other"
    for host, pid in holders:
        text += f"\n  file:///state/locks/x.json: created by root@{host} (pid {pid}) at 2026-11-21T18:38:58Z"
    return create_command_error(auto.CommandResult(stdout="", stderr=text, code=1))


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_lock_of_a_dead_process_of_this_machine_is_removed_and_the_update_repeated(dead_pid: int) -> None:
    stack, said = Stack(_locked((os.uname().nodename, dead_pid))), list[str]()
    assert without_stale_lock(stack, said.append, stack.update) == "done"  # type: ignore[arg-type]
    assert stack.calls == ["update", "cancel", "update"]
    assert str(dead_pid) in said[0]


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_the_lock_of_a_process_that_nobody_has_waited_for_is_removed() -> None:
    # As in a container whose process 1 does not wait for orphans.
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.read() == b""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    stack = Stack(_locked((os.uname().nodename, process.pid)))
    assert without_stale_lock(stack, print, stack.update) == "done"  # type: ignore[arg-type]
    process.communicate()


DEAD, LIVE = "dead", "live"
CONFLICT = "error: [409] Conflict: Another update is currently in progress."


@pytest.mark.parametrize(
    "holders",
    [[("here", DEAD), ("here", LIVE)], [("elsewhere", DEAD)], []],
    ids=["a live process", "another machine", "nobody is named"],
)
def test_any_other_lock_stays(holders: list[tuple[str, str]], dead_pid: int) -> None:
    hosts, pids = {"here": os.uname().nodename}, {DEAD: dead_pid, LIVE: os.getpid()}
    error = _locked(*((hosts.get(host, host), pids[pid]) for host, pid in holders))
    if not holders:
        error = create_command_error(auto.CommandResult(stdout="", stderr=CONFLICT, code=1))
    stack = Stack(error)
    with pytest.raises(auto.ConcurrentUpdateError):
        without_stale_lock(stack, print, stack.update)  # type: ignore[arg-type]
    assert stack.calls == ["update"]


def test_only_the_warning_of_pending_steps_names_steps() -> None:
    assert interrupted_steps(f"no fabric\n  * {HOST}, interrupted while creating") == ()


NOT_COMPLETED = {
    "never made": Snapshot((ROOT,), ((HOST, "creating"),)),
    "a deletion": Snapshot((ROOT, HOST), ((HOST, "deleting"),)),
    "nothing pending": Snapshot((ROOT, HOST), ()),
}


def refreshed(state: Snapshot) -> list[Any]:
    """Which refreshes of a stack with this state are asked for."""
    asked: list[Any] = []
    forget_completed(SimpleNamespace(refresh=lambda **options: asked.append(options)), state)  # type: ignore[arg-type]
    return asked


@pytest.mark.parametrize("state", NOT_COMPLETED.values(), ids=NOT_COMPLETED)
def test_the_record_of_a_step_that_was_not_completed_stays(state: Snapshot) -> None:
    assert refreshed(state) == []


def test_completed_records_are_dropped_without_touching_any_resource() -> None:
    [asked] = refreshed(Snapshot((ROOT, HOST), ((HOST, "creating"),)))
    assert asked["clear_pending_creates"] is True and asked["target"] == [ROOT]


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
    ("url", "folder"),
    [
        ("file:///srv/state", "/srv/state/.pulumi"),
        ("file://~/state", "/home/me/state/.pulumi"),
        ("file://./state", "/cwd/state/.pulumi"),
        ("file:///a%20b?x=1", "/a b/.pulumi"),
        *((other, None) for other in ("https://api.pulumi.com", "s3://bucket/state")),
    ],
)
def test_only_a_file_backend_has_a_folder(
    url: str, folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = recovery.folder_of(url, Path("/cwd"))
    assert (found and str(found)) == folder


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
