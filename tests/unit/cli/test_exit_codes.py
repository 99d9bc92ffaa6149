"""Each command with each kind of error: one table of exit codes and prefixes for all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from busbar.capability import capabilities
from busbar.cli import main as cli
from busbar.cli.engine import ENGINE_COMMANDS
from busbar.config.stackfile import NoStackFileError
from busbar.exits import Failed, Misuse
from busbar.kube.client import ApiError
from tests.unit.cli.test_every_command import APP, SHOWN

# What is called first by commands that have no stack, and their arguments.
FIRST: dict[str, tuple[str, tuple[str, ...]]] = {
    "docs": ("busbar.capability.capabilities", ("hosts",)),
    "init": ("busbar.release.requirements", ("dir",)),
    "schema": ("busbar.config.stackfile.project_folder", ()),
    "nccl run": ("busbar.kube.client.connect", ()),
    "nccl clean": ("busbar.kube.client.connect", ()),
    "nccl check": ("busbar.judge.nccl.read_file", ("log",)),
    "nccl profiles": ("busbar.judge.nccl.expected.profiles.names", ()),
    "training check": ("pathlib.Path.read_bytes", (__file__, "--verdict", __file__)),
    "accept criteria": ("json.dumps", ()),
    "accept sign": ("os.walk", (".", "--key", "key")),
    "accept verify": ("os.walk", (".",)),
}
MORE: dict[str, tuple[str, ...]] = {
    "drain": ("gpu-1",),
    "uncordon": ("gpu-1",),
    "restore": ("--snapshot", "x"),
    "up": ("--yes",),
    "destroy": ("--yes",),
}
SHOWN_WORDS = [" ".join(words) for words in SHOWN]
ALL = [*SHOWN_WORDS, *ENGINE_COMMANDS]
A_STEP = next((each.name, step) for each in capabilities() for step in each.steps)
TEXT = "the API says no"
UNKNOWN = ApiError("GET /x", 503, TEXT)


def is_asking(words: str) -> bool:
    """Whether it gives an answer, which may be missing: no other command has exit code 2."""
    return words not in cli.CHANGES and words not in ENGINE_COMMANDS


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run a command whose first step raises an error; the exit code, and stderr."""
    monkeypatch.setattr(cli, "build", lambda _: APP)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Pulumi.yaml").write_text("name: busbar\n")

    def run(words: str, error: BaseException) -> tuple[Any, str]:
        def fails(*_: Any, **__: Any) -> Any:
            raise error

        on_a_stack = ("busbar.config.stackfile.find", ("prod", *MORE.get(words, ())))
        first, arguments = FIRST.get(words, on_a_stack)
        if words in ENGINE_COMMANDS:
            first, arguments = "busbar.cli.engine.request", A_STEP if words == "step" else ()
        monkeypatch.setattr(first, fails)
        monkeypatch.setattr(sys, "argv", ["busbar", *words.split(), *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, capsys.readouterr().err

    return run


Ended = Callable[[str, BaseException], tuple[Any, str]]


@pytest.mark.parametrize("words", ALL)
@pytest.mark.parametrize(
    ("error", "code", "last"),
    [
        (Failed(TEXT), 1, f"error: {TEXT}"),
        (UNKNOWN, 2, f"error: no verdict: {UNKNOWN}"),
        (Misuse(TEXT), 64, f"error: {TEXT}"),
        (NoStackFileError(TEXT), 64, f"error: {TEXT}"),
        (RuntimeError(TEXT), 70, "error: internal: "),
        (KeyboardInterrupt(), 130, "error: interrupted"),
    ],
    ids=["bad or not done", "not known", "usage", "no file", "defect", "interruption"],
)
def test_each_kind_of_error_has_one_exit_code_and_prefix_in_all_commands(
    ended: Ended, words: str, error: BaseException, code: int, last: str
) -> None:
    if error is UNKNOWN and not is_asking(words):
        code, last = 1, f"error: {UNKNOWN}"  # what acts has failed
    found, said = ended(words, error)
    assert (found, said.splitlines()[-1][: len(last)]) == (code, last)
    assert code != 70 or f"RuntimeError: {TEXT}\n" in said, "a defect has its traceback"


@pytest.mark.parametrize("words", ["drain", "nccl clean", "uncordon"])
def test_what_may_have_changed_something_does_not_deny_it(ended: Ended, words: str) -> None:
    assert "no changes made" not in ended(words, KeyboardInterrupt())[1]


def test_no_command_that_the_engine_runs_is_shown() -> None:
    assert ENGINE_COMMANDS and not set(ENGINE_COMMANDS) & set(SHOWN_WORDS)
    for words in ENGINE_COMMANDS:
        command: Any = APP
        for word in words.split():
            command = command.commands[word]
        assert command.hidden or command.name
