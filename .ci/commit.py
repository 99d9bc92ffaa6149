"""Writes the commit into a wheel, where `busbar --version` reads it."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WORDS = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]


class CommitHook(BuildHookInterface):
    """Adds busbar/COMMIT; a build without git, as from an sdist, has none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before each build."""
        if version == "editable":
            return
        try:
            done = subprocess.run(WORDS, cwd=self.root, capture_output=True, text=True, check=True)
        except (OSError, subprocess.SubprocessError):
            return
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "COMMIT"
        path.write_text(done.stdout)
        build_data["force_include"][str(path)] = "busbar/COMMIT"
