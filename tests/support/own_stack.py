"""The project with a stack file of its own, for `busbar up`, which takes no other one; an update to kill."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import yaml

from tests.support.engine import ended

STACK_FILE = "Pulumi.dev.yaml"
MARK = "BUSBAR_DRILL_UPDATE"
END_SECONDS = 30


class OwnStack:
    """A folder of links to everything in `project`, state included, but with another stack file.

    `busbar` commands run there. Changes of the configuration add up; the measurement is off.
    """

    def __init__(self, project: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        # The program's interpreter is one of its folder, here as there: it stands in the resources.
        path = os.pathsep.join([str(folder / ".venv" / "bin"), environment["PATH"]])
        self._environment = {**environment, "PATH": path}
        folder.mkdir()
        for entry in project.iterdir():
            if entry.name not in (STACK_FILE, ".git"):
                (folder / entry.name).symlink_to(entry)
        (folder / STACK_FILE).write_text((project / STACK_FILE).read_text(encoding="utf-8"), encoding="utf-8")
        self.configure(lambda cluster: cluster["validation"].update(enabled=False))

    def configure(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the configuration of the cluster in the stack file."""
        path = self.folder / STACK_FILE
        stack = yaml.safe_load(path.read_text(encoding="utf-8"))
        change(stack["config"]["busbar:cluster"])
        path.write_text(yaml.safe_dump(stack), encoding="utf-8")

    def busbar(self, *words: str, seconds: float = 900) -> subprocess.CompletedProcess[str]:
        """`busbar WORDS...`, with both of its outputs in `stdout`."""
        return self._run(sys.executable, "-m", "busbar", *words, seconds=seconds)

    def no_changes(self) -> bool:
        """Whether the program registers exactly the resources of the state, as they are."""
        options = ("--yes", "--skip-preview", "--suppress-progress", "--non-interactive", "--stack", "dev")
        done = self._run("pulumi", "up", *options, "--expect-no-changes", seconds=900)
        print("no changes" if done.returncode == 0 else done.stdout)
        return done.returncode == 0

    def lose_state(self) -> None:
        """Remove the state, and nothing that it describes."""
        words = ("pulumi", "stack", "rm", "--yes", "--force", "--preserve-config", "--stack", "dev")
        done = self._run(*words, seconds=60)
        assert done.returncode == 0, done.stdout

    def _run(self, *words: str, seconds: float) -> subprocess.CompletedProcess[str]:
        return ended(words, self.folder, self._environment, seconds)

    def up(self) -> str:
        """One update that must succeed; returns what it printed."""
        done = self.busbar("up", "dev", "--yes", "--skip-preview")
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start_up(self) -> RunningUpdate:
        """Start an update."""
        return RunningUpdate(self.folder, self._environment)


class RunningUpdate:
    """`busbar up` in the background, with engine, plugins and everything else that it starts.

    `logs`: where its output is kept; by default beside `folder`.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], logs: Path | None = None) -> None:
        self._mark = uuid4().hex
        self._printed = (logs or folder.parent) / f"update-{self._mark}.log"
        with self._printed.open("wb") as printed:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "busbar", "up", "dev", "--yes", "--skip-preview"],
                cwd=folder, env={**environment, MARK: self._mark}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def printed(self) -> str:
        return self._printed.read_text(encoding="utf-8", errors="replace")

    def ended_within(self, seconds: float) -> bool:
        """Whether it ended by itself within this time. It must not have failed then."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        assert code == 0, self.printed
        return True

    def kill(self) -> None:
        """End all of it at once, as if its machine lost power: nothing of it can still note anything."""
        deadline = time.monotonic() + END_SECONDS
        while living := self.living():
            for process in living:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            assert time.monotonic() < deadline, f"still there: {living}"
        self._process.wait(END_SECONDS)

    def living(self) -> list[psutil.Process]:
        """Its processes, whoever their parent is by now: they inherit the mark."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found
