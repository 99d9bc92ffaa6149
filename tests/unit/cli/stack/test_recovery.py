"""Locks and pending steps that a killed update leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pulumi import automation as auto
from pulumi.automation.errors import create_command_error

from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.recovery import forget_completed, interrupted_steps, without_stale_lock

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


class Refreshed:
    """A stack that notes which refresh was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []

    def refresh(self, **options: object) -> None:
        self.asked.append(options)


@pytest.mark.parametrize(
    "state",
    [
        Snapshot((ROOT,), ((HOST, "creating"),)),
        Snapshot((ROOT, HOST), ((HOST, "deleting"),)),
        Snapshot((ROOT, HOST), ()),
    ],
    ids=["never made", "a deletion", "nothing pending"],
)
def test_the_record_of_a_step_that_was_not_completed_stays(state: Snapshot) -> None:
    stack = Refreshed()
    forget_completed(stack, state)  # type: ignore[arg-type]
    assert stack.asked == []


def test_completed_records_are_dropped_without_touching_any_resource() -> None:
    stack = Refreshed()
    forget_completed(stack, Snapshot((ROOT, HOST), ((HOST, "creating"),)))  # type: ignore[arg-type]
    [asked] = stack.asked
    assert asked["clear_pending_creates"] is True and asked["target"] == [ROOT]
