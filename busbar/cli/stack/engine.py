"""The Pulumi engine: the `pulumi` command as the Automation API runs it, and a stack of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from types import FrameType
from typing import Any

from pulumi import automation as auto
from pulumi.automation.errors import create_command_error
from semver import VersionInfo

from busbar.cli.stack import Target
from busbar.cli.stack.errors import INSTALL_PULUMI
from busbar.exits import Failed, Misuse
from busbar.finding import Fix

Output = Callable[[str], Any]
OLDEST = VersionInfo(3, 259)  # of `pulumi`, as the README says
# A lost terminal and a cancelled CI job end an update as Ctrl-C does.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACEFUL = "interrupted: running steps finish, no new ones start. Ctrl-C again stops them where they are."
FORCED = "stopping now. Ctrl-C again kills the engine."
KILLED = "killed the engine."


class Engine(auto.PulumiCommand):
    """The `pulumi` command. Each call runs in its own session and gets signals from `interrupts` only.

    In the terminal's session Ctrl-C would reach it too. `stderr`: what the last failed call wrote.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self.stderr = ""
        try:
            super().__init__(version=OLDEST)
        except FileNotFoundError:
            raise Misuse("the command `pulumi` is not on PATH", INSTALL_PULUMI) from None
        except (OSError, subprocess.CalledProcessError, auto.InvalidVersionError) as error:
            raise Misuse(f"`pulumi version` failed: {error}", INSTALL_PULUMI) from None

    def run(
        self,
        args: list[str],
        cwd: str,
        additional_env: Mapping[str, str],
        on_output: Output | None = None,
        on_error: Output | None = None,
    ) -> auto.CommandResult:
        """Run like PulumiCommand.run, but call no callback: busbar gives none. Raises CommandError."""
        command = [self.command, "--non-interactive", *args]
        env = {**os.environ, **additional_env, "PULUMI_AUTOMATION_API": "true"}

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(
                command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, encoding="utf-8", errors="replace", start_new_session=True,
            )  # fmt: skip

        with self._interrupts.passed_on(start) as process:
            stdout, stderr = process.communicate()
        result = auto.CommandResult(stdout=stdout.rstrip(), stderr=stderr.rstrip(), code=process.returncode)
        if result.code != 0:
            self.stderr = result.stderr
            raise create_command_error(result)
        return result


@dataclass(frozen=True)
class Snapshot:
    """The engine's state: URNs of the resources, and (URN, kind) of the interrupted steps."""

    resources: tuple[str, ...]
    pending: tuple[tuple[str, str], ...]
    text: str = '{"deployment": {}}'
    """The whole export."""
    made: tuple[str, ...] = ()
    """URNs of what was made outside of the state. An update that preflight refuses makes nothing there."""

    @property
    def emptied(self) -> str:
        """The export without resources, for `import_state`."""
        export = json.loads(self.text)
        export["deployment"] |= {"resources": [], "pending_operations": []}
        return json.dumps(export)


def open_stack(engine: Engine, target: Target, *, create: Callable[[str], None] | None = None) -> auto.Stack:
    """Select the stack, or create it and tell `create`, if given. Raises Misuse and CommandError."""
    workspace = auto.LocalWorkspace(work_dir=str(target.project), pulumi_command=engine)
    try:
        return auto.Stack.select(target.stack, workspace)
    except auto.StackNotFoundError:
        backend = workspace.who_am_i().url
        if create is None:
            what = "if it exists in another backend, `pulumi login` there; to create it here"
            fix = Fix(what, ("up", target.name))
            raise Misuse(f"stack {target.name} does not exist in {backend}", fix) from None
        stack = auto.Stack.create(target.stack, workspace)
        create(f"created stack {target.name} in {backend}")
        return stack


def import_state(stack: auto.Stack, export: str) -> None:
    """Import what `snapshot` has exported, as it is. Raises CommandError."""
    workspace = stack.workspace
    with NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(export)
        file.flush()
        workspace.pulumi_command.run(
            ["stack", "import", "--file", file.name, "--stack", stack.name],
            str(workspace.work_dir),
            workspace.env_vars or {},
        )


def snapshot(stack: auto.Stack) -> Snapshot:
    """Read the engine's state; secrets stay encrypted. Raises CommandError."""
    workspace = stack.workspace
    done = workspace.pulumi_command.run(
        ["stack", "export", "--stack", stack.name], str(workspace.work_dir), workspace.env_vars or {}
    )
    deployment = json.loads(done.stdout).get("deployment") or {}
    resources = deployment.get("resources") or ()
    return Snapshot(
        tuple(resource["urn"] for resource in resources),
        tuple(
            (operation["resource"]["urn"], operation["type"])
            for operation in deployment.get("pending_operations") or ()
        ),
        done.stdout,
        # Components, providers, tokens and Stashes exist in the state only.
        tuple(
            resource["urn"]
            for resource in resources
            if resource.get("custom") and not resource["type"].startswith(("pulumi:", "random:"))
        ),
    )


def refuse_changed(stack: auto.Stack, target: Target, before: Snapshot, written: bytes) -> None:
    """Raise Failed if others have changed state or file since `before` and `written` were read."""
    if snapshot(stack).text != before.text or target.written != written:
        what = f"state or file of stack {target.name} have changed since they were read; no changes made"
        raise Failed(what, "run it again: it shows what would change now")


class Interrupts:
    """Takes SIGINT, SIGTERM and SIGHUP while entered, in the main thread.

    While a child runs, a signal is passed on to it; otherwise it raises KeyboardInterrupt. `count` is the
    number of signals so far. `say` prints one line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.count = 0
        self._say = say
        self._starting = False
        self._child: subprocess.Popen[str] | None = None
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        self._former = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    @contextmanager
    def passed_on(self, start: Callable[[], subprocess.Popen[str]]) -> Iterator[subprocess.Popen[str]]:
        """Start a child in its own session, and pass signals on to it until the block ends."""
        before, self._starting = self.count, True
        try:
            self._child = start()
            if self.count > before:
                self._pass_on()  # a signal that came while the child was being started
            yield self._child
        finally:
            self._starting, self._child = False, None

    def end_child(self) -> None:
        """Let the child end as after a first signal, without counting one."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self.count:
            return  # the shell reports a lost terminal, and the kernel again when the shell ends
        self.count += 1
        if self._child is not None:
            self._pass_on()
        elif not self._starting:
            raise KeyboardInterrupt

    def _pass_on(self) -> None:
        """Pass a signal on. The engine ends gracefully at the first SIGINT and at once at the second."""
        child = self._child
        if child is None or child.poll() is not None:
            return
        if self.count <= 2:
            self._say(GRACEFUL if self.count == 1 else FORCED)
            child.send_signal(signal.SIGINT)
        else:
            self._say(KILLED)
            os.killpg(child.pid, signal.SIGKILL)
