"""What a full disk or a crash leaves in a backend of files, and how busbar goes on after it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.engine import throwaway_project

SECONDS = 900  # a limit for a machine that is busy with other things
PROGRAM = """
import pulumi

pulumi.export("word", pulumi.Config().get("word"))
"""


@dataclass
class Site:
    """A throwaway project whose stack `dev` has been updated twice."""

    folder: Path
    environment: Mapping[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
        )  # fmt: skip

    def busbar(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "busbar", *words)

    def up(self, word: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "Pulumi.dev.yaml").write_text(f"config: {{'tiny:word': {word}}}\n")
        return self.busbar("up", "dev", "--yes", "--skip-preview")

    def file(self, path: str, text: str = "") -> Path:
        found = self.folder / "state/.pulumi" / path
        found.parent.mkdir(parents=True, exist_ok=True)
        found.write_text(text)
        return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path, throwaway_project(tmp_path, PROGRAM, TERM="dumb"))
    for word in ("one", "two"):
        done = made.up(word)
        assert done.returncode == 0, done.stdout
    return made


def test_an_empty_lock_is_named_and_removed_and_the_update_goes_on(site: Site) -> None:
    locks = "locks/organization/tiny"
    empty = [site.file(f"{locks}/dev/6a0c.json.18eb7d46.tmp"), site.file(f"{locks}/dev/6a0c.json")]
    another = site.file(f"{locks}/prod/6a0c.json.18eb7d46.tmp")
    done = site.up("three")
    assert done.returncode == 0, done.stdout
    assert all(f"removed an empty lock: {path}" in done.stdout for path in empty), done.stdout
    assert [path.exists() for path in (*empty, another)] == [False, False, True]


@pytest.mark.parametrize("left", ["half", "nothing", "no attributes"])
def test_a_truncated_state_is_restored_by_the_command_that_is_named(site: Site, left: str) -> None:
    state = site.folder / "state/.pulumi/stacks/tiny/dev.json"
    damaged = state.with_name("dev.json.attrs") if left == "no attributes" else state
    damaged.write_text(state.read_text()[:400] if left == "half" else "")
    failed = site.busbar("preview", "dev")
    named = re.search(r"Fix: `(.+?)`", failed.stdout)
    assert failed.returncode == 1 and named, failed.stdout
    repaired = site.run("sh", "-c", named[1])
    assert repaired.returncode == 0, repaired.stdout
    assert "two" in site.busbar("status", "dev").stdout, "the outputs of the last update"
    done = site.up("three")
    assert done.returncode == 0, done.stdout
