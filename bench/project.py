"""A copy of this project with a backend of its own: what bench/scale.py measures."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab.engine.environment import environment

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 7200


@dataclass(frozen=True)
class Measured:
    """One command: wall and CPU seconds and the largest process in MiB, children included, and its output."""

    seconds: float
    cpu_seconds: float
    rss_mib: float
    code: int
    text: str


class Project:
    """`folder` gets the backend, and in `path` the files of this project as links.

    The stack files are written beside Pulumi.yaml, so the project needs a folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "site"
        self.path.mkdir()
        self._log = folder / "command.log"
        self._backend = folder / "backend"
        self._backend.mkdir()
        for path in ROOT.iterdir():
            if path.name not in {".git", ".lab", ".busbar"} and not path.match("Pulumi.*.yaml"):
                (self.path / path.name).symlink_to(path)
        self.env = {
            **os.environ,
            **environment(),
            "PULUMI_BACKEND_URL": f"file://{self._backend}",
            "PULUMI_CONFIG_PASSPHRASE": "bench",
        }

    def configure(self, stack: str, cluster: Mapping[str, Any]) -> None:
        """Write the stack's file with `busbar:cluster`; what the engine wrote into it stays."""
        file = self.path / f"Pulumi.{stack}.yaml"
        before = yaml.safe_load(file.read_text()) if file.exists() else None
        file.write_text(yaml.safe_dump({**(before or {}), "config": {"busbar:cluster": dict(cluster)}}))

    def state_bytes(self, stack: str) -> int:
        """The size of the checkpoint, which the engine writes twice per step."""
        return max(path.stat().st_size for path in self._backend.rglob(f"stacks/**/{stack}.json*"))

    def measure(
        self, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Measured:
        """Run a command of the engine in the project, or in `cwd`."""
        started = time.perf_counter()
        with self._log.open("w") as out:
            process = subprocess.Popen(
                command, cwd=cwd or self.path, env={**self.env, **(env or {})}, stdout=out, stderr=out
            )
            overdue = threading.Timer(DEADLINE_SECONDS, process.kill)
            overdue.start()
            _, status, usage = os.wait4(process.pid, 0)
            overdue.cancel()
        return Measured(
            seconds=time.perf_counter() - started,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            rss_mib=usage.ru_maxrss / 1024,
            code=os.waitstatus_to_exitcode(status),
            text=self._log.read_text(),
        )

    def succeed(
        self, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Measured:
        """As `measure`; ends the bench if the command fails."""
        done = self.measure(*command, cwd=cwd, env=env)
        if done.code != 0:
            raise SystemExit(f"{' '.join(command)} failed ({done.code}):\n{done.text[-6000:]}")
        return done
