"""A lost state is recovered from its copies, with the real engine and a program without hosts."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.engine import ended, throwaway_project

PROGRAM = """
    import pulumi
    import pulumi_command
    pulumi_command.local.Command("made", create="true")
    pulumi.Stash("first", input=pulumi.Output.secret("hidden"))
    for number in range(int(pulumi.Config().get("more") or 0)):
        pulumi.Stash(f"more-{number}", input="x")
"""


@dataclass(frozen=True)
class Site:
    folder: Path
    environment: Mapping[str, str]

    def run(self, *words: str, stack: str = "dev", **more: str) -> tuple[int, str]:
        program = [sys.executable, "-m", "busbar"] if words[0] in ("up", "recover", "destroy") else ["pulumi"]
        named = [words[0], stack, *words[1:]] if len(program) > 1 else [*words, "--stack", stack]
        done = ended([*program, *named], self.folder, {**self.environment, **more})
        return done.returncode, done.stdout

    def up(self, more: int) -> str:
        assert self.run("config", "set", "more", str(more))[0] == 0
        code, text = self.run("up", "--yes", "--skip-preview")
        assert code == 0, text
        return text

    def lose(self) -> None:
        assert self.run("stack", "rm", "--force", "--yes", "--preserve-config")[0] == 0

    @property
    def copies(self) -> list[Path]:
        return sorted((self.folder / ".busbar/dev/state").iterdir())


def imported(text: str) -> int:
    return int(re.findall(r"^imported (\d+) resources", text, re.MULTILINE)[0])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path, throwaway_project(tmp_path, PROGRAM, NO_COLOR="1"))
    assert made.run("stack", "init")[0] == 0
    made.up(1)
    return made


def test_the_newest_whole_copy_is_imported_and_the_next_update_goes_on(site: Site) -> None:
    # An update without changes encrypts the secrets anew, which the next one begins with.
    for _ in range(3):
        site.up(2)
    assert len(site.copies) == 2, "an update without changes makes none"
    assert {path.stat().st_mode & 0o777 for path in site.copies} == {0o600}
    assert all("hidden" not in path.read_text() for path in site.copies)
    code, text = site.run("recover", "--yes")
    assert code == 1 and "only a lost one is recovered" in text, text
    site.lose()
    code, text = site.run("recover", "--yes")
    assert code == 0 and "their secrets need the PULUMI_CONFIG_PASSPHRASE of the stack" in text, text
    newest = imported(text)
    assert "resources: nothing to do" in site.up(2)
    site.lose()
    for copy in site.copies[1:]:
        copy.write_text(copy.read_text()[:-200])
    code, text = site.run("recover", "--yes")
    assert code == 0 and "damaged on this folder" in text, text
    assert imported(text) == newest - 1


def test_a_wrong_passphrase_imports_nothing(site: Site) -> None:
    site.lose()
    code, text = site.run("recover", "--yes", PULUMI_CONFIG_PASSPHRASE="wrong")
    assert code == 1 and "passphrase" in text, text


def test_the_copies_of_another_stack_are_named_and_not_imported(site: Site) -> None:
    (site.folder / ".busbar/dev").rename(site.folder / ".busbar/other")
    (site.folder / "Pulumi.dev.yaml").rename(site.folder / "Pulumi.other.yaml")
    code, text = site.run("recover", "--yes", stack="other")
    assert code == 1 and "there are copies of tiny/dev, which are not imported here" in text, text


def test_five_updates_leave_three_copies_and_a_destroy_none(site: Site) -> None:
    for more in range(2, 6):
        site.up(more)
    assert len(site.copies) == 3
    code, text = site.run("destroy", "--yes")
    assert code == 0, text
    assert not (site.folder / ".busbar/dev/state").exists()
