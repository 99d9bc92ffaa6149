"""Throwaway Pulumi projects with a state of their own, for tests that run the engine without hosts.

Engine and plugins are the official ones where they are installed, else the lab's.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.engine.environment import environment

PROJECT = Path(__file__).resolve().parents[2]
TOOLS = ("pulumi", "pulumi-language-python", "pulumi-resource-pulumi-python")


def ended(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float = 900
) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with what it printed to both of its outputs."""
    return subprocess.run(
        command, cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=seconds, check=False,
    )  # fmt: skip


@dataclass(frozen=True)
class Project:
    """A throwaway project, and the environment of its commands."""

    folder: Path
    environment: Mapping[str, str]

    def pulumi(self, *words: str, stack: str = "dev") -> tuple[int, str]:
        """The exit code of a command, and what it printed."""
        command = ["pulumi", *words, "--stack", stack, "--non-interactive", "--color", "never"]
        done = ended(command, self.folder, self.environment)
        return done.returncode, done.stdout


def require_engine(path: str) -> None:
    """Skip the test if there is no engine on `path`; fail it in CI."""
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=path) is None]:
        reason = f"not on PATH, and not built by the lab: {', '.join(missing)}; run `python -m lab build`"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def throwaway_project(folder: Path, program: str, **more: str) -> Mapping[str, str]:
    """Write the project `tiny` with `program` into `folder`; returns the environment of its commands.

    `more` is added to that environment. Without an engine the test is skipped, and fails in CI.
    """
    variables = {
        **{name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"},
        **environment(folder),
        "PYTHONPATH": str(PROJECT),
        **more,
    }
    require_engine(variables["PATH"])
    virtualenv = Path(sys.prefix).resolve()
    (folder / "Pulumi.yaml").write_text(
        f"name: tiny\nruntime: {{name: python, options: {{virtualenv: {virtualenv}}}}}\n"
    )
    (folder / "__main__.py").write_text(textwrap.dedent(program))
    return variables
