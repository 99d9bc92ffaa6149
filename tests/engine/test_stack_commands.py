"""`busbar up`, `preview`, `status` and `destroy` with the real engine, on a program of two resources.

The engine is the one on PATH, else the one that the lab built. The tests are one story, in this order.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from lab.hosts.processes import runs
from tests.support.engine import ended, throwaway_project
from tests.support.lab import eventually

SECONDS = 900  # a limit for a machine that is busy with other things

# A step that is told to wait says so in a file, and goes on when another file appears.
PROGRAM = """
    import os, pathlib, time
    import pulumi
    from pulumi import dynamic

    from busbar.outputs import GATE_FAILED
    from busbar.components.engine.stack import export_all

    class Provider(dynamic.ResourceProvider):
        def create(self, props):
            if props["word"] == "broken":
                raise Exception("the switch is off")
            self.pause(props)
            return dynamic.CreateResult(id_="1", outs=dict(props))

        def update(self, id, old, new):
            self.pause(new)
            return dynamic.UpdateResult(outs=dict(new))

        def pause(self, props):
            if props.get("wait"):
                folder = pathlib.Path(props["wait"])
                (folder / "begun").touch()
                deadline = time.monotonic() + 900
                while not (folder / "go").exists():
                    if time.monotonic() > deadline:
                        raise Exception("nobody said go")
                    time.sleep(0.05)

        def diff(self, id, old, new):
            changed = [key for key in ("word", "note") if old[key] != new[key]]
            return dynamic.DiffResult(changes=bool(changed), replaces=sorted({"word"} & {*changed}))

    class Step(dynamic.Resource):
        word: pulumi.Output[str]

        def __init__(self, name, word, wait=None, note="", opts=None):
            super().__init__(Provider(), name, {"word": word, "wait": wait, "note": note}, opts)

    config = pulumi.Config()
    first = Step("first", "one")
    second = Step(
        "second",
        config.get("word") or "two",
        wait=config.get("wait") or "",
        note=config.get("note") or "",
        opts=pulumi.ResourceOptions(depends_on=[first]),
    )
    if config.get("extra"):
        Step("extra", "three")
    export_all({"word": second.word, "kubeconfig": pulumi.Output.secret("s3cret")})
    if config.get("gate"):
        pulumi.export("contract_version", 1)
        pulumi.export("cluster_name", "tiny")
        pulumi.export("nccl_passed", False)
        pulumi.export("nccl_reasons", ["busbw: 1 GB/s, expected 400 GB/s"])
        raise pulumi.RunError(f"failed {GATE_FAILED}" if config.get("gate") == "1" else "Node not Ready")
"""


@dataclass
class Done:
    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        return [" ".join(line.split()) for line in self.text.splitlines()]


@dataclass
class Site:
    """A throwaway project with a state of its own."""

    folder: Path
    environment: Mapping[str, str]
    settings: dict[str, str] = field(default_factory=dict)

    def configure(self, **settings: str) -> None:
        """Write the stack file; keeps the salt that the engine put there."""
        path = self.folder / "Pulumi.dev.yaml"
        salt = [line for line in path.read_text().splitlines() if line.startswith("encryptionsalt")]
        config = json.dumps({f"tiny:{name}": value for name, value in settings.items()})
        path.write_text("\n".join([*salt, f"config: {config}", ""]))

    def busbar(self, *arguments: str, **environment: str) -> Done:
        command = [sys.executable, "-m", "busbar", *arguments]
        done = ended(command, self.folder, {**self.environment, **environment})
        return Done(done.returncode, done.stdout)

    def started(self, *arguments: str, terminal: int | None = None) -> subprocess.Popen[str]:
        """An update that waits in the middle of `second`, on a terminal of its own if one is given."""
        self.waiting("begun").unlink(missing_ok=True)
        self.waiting("go").unlink(missing_ok=True)
        process = self.begun(*arguments, terminal=terminal)
        begun = self.waiting("begun")
        eventually(lambda: begun.exists() or process.poll() is not None, SECONDS, "a step waits")
        assert process.poll() is None, process.stdout and process.stdout.read()
        return process

    def begun(self, *arguments: str, terminal: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "busbar", *arguments],
            cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE if terminal is None else terminal, stderr=subprocess.STDOUT,
            start_new_session=terminal is not None,
            preexec_fn=None if terminal is None else _own_terminal,
        )  # fmt: skip

    def killed(self, *arguments: str) -> int:
        """An update that is killed in the middle of `second`; returns the process of its engine."""
        update = self.started(*arguments)
        engine = _engine(update)
        # busbar first, so that it does not see its engine end.
        everything = [psutil.Process(update.pid), engine, *engine.children(recursive=True)]
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with the one before it
                process.kill()
        update.wait(SECONDS)
        eventually(lambda: not any(map(runs, everything)), SECONDS, "all processes have ended")
        self.waiting("go").touch()
        return engine.pid

    def waiting(self, name: str) -> Path:
        return self.folder / "wait" / name

    def answered(self, answer: str, *arguments: str, meanwhile: Callable[[], object] | None = None) -> Done:
        """A command on a terminal of its own, whose question gets `answer`, `meanwhile` has run before."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "busbar", *arguments],
            cwd=self.folder, env=self.environment, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        printed = b""
        try:
            while meanwhile and not re.search(rb"Perform this|to go on", printed):
                printed += os.read(ours, 65536)
            if meanwhile:
                meanwhile()
            os.write(ours, f"{answer}\n".encode())
            while block := os.read(ours, 65536):
                printed += block
        except OSError:  # the terminal's end, on Linux
            pass
        os.close(ours)
        return Done(process.wait(SECONDS), printed.decode())

    def pending(self) -> list[str]:
        return [step["type"] for step in self.state().get("pending_operations") or []]

    def resources(self) -> set[str]:
        return {each["urn"].rpartition("::")[2] for each in self.state()["resources"]}

    def state(self) -> dict[str, Any]:
        done = ended(["pulumi", "stack", "export", "--stack", "dev"], self.folder, self.environment)
        found: dict[str, Any] = json.loads(done.stdout)["deployment"]
        return found


def _own_terminal() -> None:
    """In the child: stdin is the terminal that SIGHUP comes from when it is closed."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(process: subprocess.Popen[str], text: str) -> str:
    """What the process printed, to the end of the line with `text`."""
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while text not in lines[-1]:
        assert lines[-1], f"ended without {text!r}: {lines}"
        lines.append(process.stdout.readline())
    return "".join(lines)


def _engine(update: subprocess.Popen[str]) -> psutil.Process:
    """The engine of a running update."""
    engine, *_ = psutil.Process(update.pid).children()
    return engine


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("project")
    environment = throwaway_project(folder, PROGRAM, TERM="dumb")
    (folder / "wait").mkdir()
    (folder / "Pulumi.dev.yaml").write_text("config: {}\n")
    return Site(folder, environment)


def test_status_of_a_stack_that_was_never_made_says_how_to_make_it(site: Site) -> None:
    done = site.busbar("status", "dev")
    assert done.code == 64, done.text
    assert "does not exist" in done.text and "busbar up dev" in done.text


def test_the_first_up_makes_the_stack_and_prints_a_row_for_each_step(site: Site) -> None:
    done = site.busbar("up", "dev", "--yes")
    assert done.code == 0, done.text
    assert any("created stack dev" in line for line in done.lines)
    assert "create first, second" in done.lines, "the preview"
    assert [line.split()[1:4] for line in done.lines if "✓" in line] == [
        ["✓", "first", "created"],
        ["✓", "second", "created"],
    ]
    assert "word two" in done.lines and "kubeconfig [secret]" in done.lines
    assert "s3cret" not in done.text and "\x1b" not in done.text, "neither secrets nor colours"


def test_status_after_a_good_update_is_0(site: Site) -> None:
    done = site.busbar("status", "dev")
    assert done.code == 0, done.text
    assert any(line.startswith("last update update succeeded") for line in done.lines)
    found = json.loads(site.busbar("status", "dev", "--json").text)
    assert found["good"] and found["last_update"]["result"] == "succeeded"
    assert (found["outputs"], found["pending"]) == ({"word": "two"}, [])


def test_an_up_without_changes_says_so(site: Site) -> None:
    done = site.busbar("up", "dev", "--yes")
    assert done.code == 0, done.text
    assert "changes: none, 2 unchanged" in done.lines
    assert any(line.startswith("resources: nothing to do") for line in done.lines)


def test_an_empty_lock_is_named_and_removed_and_the_update_goes_on(site: Site) -> None:
    locks = site.folder / "state/.pulumi/locks/organization/tiny"
    names = ("dev/6a0c.json.18eb7d46.tmp", "dev/6a0c.json", "prod/6a0c.json.18eb7d46.tmp")
    *empty, another = (locks / name for name in names)
    for path in (*empty, another):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    done = site.busbar("up", "dev", "--yes", "--skip-preview")
    assert done.code == 0, done.text
    assert all(f"removed an empty lock: {path}" in done.text for path in empty), done.text
    assert [path.exists() for path in (*empty, another)] == [False, False, True]


@pytest.mark.parametrize("left", ["half", "nothing", "no attributes"])
def test_a_truncated_state_is_restored_by_the_command_that_is_named(site: Site, left: str) -> None:
    state = site.folder / "state/.pulumi/stacks/tiny/dev.json"
    damaged = state.with_name("dev.json.attrs") if left == "no attributes" else state
    damaged.write_text(state.read_text()[:400] if left == "half" else "")
    failed = site.busbar("preview", "dev")
    named = re.search(r"Fix: `(.+?)`", failed.text)
    assert failed.code == 1 and named, failed.text
    subprocess.run(["sh", "-c", named[1]], cwd=site.folder, env=site.environment, check=True)
    assert "word two" in site.busbar("status", "dev").lines, "the outputs of the last update"


def test_a_preview_names_what_is_replaced_and_why_and_a_no_changes_nothing(site: Site) -> None:
    site.configure(word="three")
    done = site.answered("n", "up", "dev")
    assert done.code == 1, done.text
    assert "replace second because of word" in done.lines
    assert any(line.startswith("changes: 1 to replace") for line in done.lines)
    assert "no changes made" in done.text
    assert "word two" in site.busbar("status", "dev").lines


def test_a_yes_on_the_terminal_performs_the_update(site: Site) -> None:
    done = site.answered("y", "up", "dev")
    assert done.code == 0, done.text
    assert "word three" in done.lines


def test_a_failed_step_ends_with_its_reason_and_the_next_command(site: Site) -> None:
    site.configure(word="broken")
    done = site.busbar("up", "dev", "--yes", "--skip-preview")
    assert done.code == 1, done.text
    assert any("✗ second failed" in line for line in done.lines)
    [former] = [line for line in done.lines if line.startswith("outputs are those of ")]
    assert done.lines.index(former) < done.lines.index("error: busbar up dev failed")
    assert "word two" not in done.lines, "the outputs are not printed once more"
    assert "Exception: the switch is off" in done.lines[-10:]
    assert "busbar up dev" in done.lines[-1]


def test_what_is_no_longer_configured_is_not_removed_while_another_step_fails(site: Site) -> None:
    site.configure(extra="1")
    assert site.busbar("up", "dev", "--yes", "--skip-preview").code == 0
    site.configure(word="broken")
    done = site.busbar("up", "dev", "--yes", "--skip-preview")
    assert done.code == 1, done.text
    assert {"second", "extra"} <= site.resources(), done.text


def test_a_failed_gate_ends_with_its_reasons_and_the_next_command(site: Site) -> None:
    site.configure(word="three", gate="1")
    done = site.busbar("up", "dev", "--yes", "--skip-preview")
    assert done.code == 1, done.text
    assert done.lines[-3:-1] == [
        "error: NCCL validation failed for cluster tiny",
        "- busbw: 1 GB/s, expected 400 GB/s",
    ]
    assert "set validation.run: 2 in Pulumi.dev.yaml" in done.lines[-1] and "busbar up dev" in done.lines[-1]
    assert site.busbar("status", "dev").code == 1


def test_an_update_that_fails_for_another_reason_than_its_failed_gate_says_that_one(site: Site) -> None:
    site.configure(word="three", gate="another")
    done = site.busbar("up", "dev", "--yes", "--skip-preview")
    assert done.code == 1, done.text
    assert done.lines[-3:-1] == ["error: busbar up dev failed", "Node not Ready"], done.text


def test_a_preview_names_the_deletions_that_a_failed_update_did_not_get_to(site: Site) -> None:
    site.configure(word="three and a half", gate="another")
    assert site.busbar("up", "dev", "--yes", "--skip-preview").code == 1
    site.configure(word="three and a half")
    done = site.busbar("preview", "dev")
    assert done.code == 0, done.text
    assert "delete second because of an earlier update that replaced it and did not finish" in done.lines


def test_an_interrupted_update_lets_its_step_end_and_is_finished_by_the_next_one(site: Site) -> None:
    site.configure(word="four", wait=str(site.folder / "wait"))
    update = site.started("up", "dev", "--yes", "--skip-preview")
    update.send_signal(signal.SIGINT)
    _read_until(update, "interrupted: running steps finish")
    site.waiting("go").touch()
    rest, _ = update.communicate(timeout=SECONDS)
    assert update.returncode == 130, rest
    assert "every step that began has ended" in rest and "busbar up dev" in rest
    assert site.pending() == []
    done = site.busbar("up", "dev", "--yes", "--skip-preview")
    assert done.code == 0, done.text
    assert "word four" in done.lines


def test_an_update_that_loses_its_terminal_lets_its_step_end_and_leaves_no_engine_behind(site: Site) -> None:
    site.configure(word="four and a half", wait=str(site.folder / "wait"))
    ours, theirs = pty.openpty()
    update = site.started("up", "dev", "--yes", "--skip-preview", terminal=theirs)
    os.close(theirs)
    engine = _engine(update)
    os.close(ours)  # the kernel sends SIGHUP, and every further row fails
    site.waiting("go").touch()
    assert update.wait(SECONDS) == 130
    assert not runs(engine)
    assert site.pending() == []


def test_the_lock_of_a_running_update_is_respected(site: Site) -> None:
    site.configure(word="five", wait=str(site.folder / "wait"))
    update = site.started("up", "dev", "--yes", "--skip-preview")
    other = site.busbar("up", "dev", "--yes", "--skip-preview")
    site.waiting("go").touch()
    printed, _ = update.communicate(timeout=SECONDS)
    assert update.returncode == 0, printed
    assert other.code == 1, other.text
    assert "currently locked by" in other.text and "`kill -INT PID` ends its engine" in other.text


def test_a_killed_update_leaves_a_lock_and_a_pending_step_and_the_next_one_clears_both(site: Site) -> None:
    site.configure(word="six", wait=str(site.folder / "wait"))
    engine = site.killed("up", "dev", "--yes", "--skip-preview")
    status = site.busbar("status", "dev")
    assert status.code == 1, status.text
    assert "pending creating second" in status.lines
    done = site.busbar("up", "dev", "--yes")
    assert done.code == 0, done.text
    assert f"removed the lock of an update that was killed (process {engine})" in done.text
    assert "an earlier update was interrupted at second; this one continues" in done.text
    assert site.pending() == []
    assert site.busbar("status", "dev").code == 0


def test_a_killed_change_that_the_next_update_does_not_repeat_is_an_error_of_that_update(site: Site) -> None:
    site.configure(word="six", note="changed", wait=str(site.folder / "wait"))
    site.killed("up", "dev", "--yes", "--skip-preview")
    site.configure(word="six")
    done = site.busbar("up", "dev", "--yes")
    assert done.code == 1, done.text
    assert "in the middle of a change that this one did not repeat" in done.text
    assert "- second" in done.lines
    site.configure(word="six", note="changed")
    assert site.busbar("up", "dev", "--yes").code == 0
    site.configure(word="six")
    assert site.busbar("up", "dev", "--yes").code == 0


def test_a_destroy_wants_the_name_of_the_stack(site: Site) -> None:
    done = site.answered("yes", "destroy", "dev")
    assert done.code == 1, done.text
    assert "delete second" in done.lines and "no changes made" in done.text
    assert site.busbar("status", "dev").code == 0


def test_a_destroy_removes_everything_and_the_kept_kubeconfig(site: Site) -> None:
    done = site.answered("dev", "destroy", "dev")
    assert done.code == 0, done.text
    assert any(line.startswith("resources: 2 deleted") for line in done.lines)
    assert {path.name for path in (site.folder / ".busbar" / "dev").iterdir()} <= {"lab"}, "reports stay"
    again = site.busbar("destroy", "dev", "--yes")
    assert again.code == 0 and "has no resources" in again.text, again.text


def test_an_update_and_a_destroy_keep_what_others_applied_while_their_question_was_open(site: Site) -> None:
    def of_others(word: str) -> None:
        site.configure(word=word, extra="of another file")
        assert site.busbar("up", "dev", "--yes").code == 0
        site.configure(word="mine")

    site.configure(word="mine")
    done = site.answered("y", "up", "dev", meanwhile=lambda: of_others("theirs"))
    assert (done.code, "have changed since" in done.text) == (1, True), done.text
    done = site.answered("dev", "destroy", "dev", meanwhile=lambda: of_others("theirs again"))
    assert (done.code, "have changed since" in done.text) == (1, True), done.text
    assert {"first", "second", "extra"} <= site.resources()
    done = site.answered("y", "up", "dev")
    assert (done.code, "delete extra" in done.lines) == (0, True), done.text
