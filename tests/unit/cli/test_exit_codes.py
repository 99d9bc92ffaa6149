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
from busbar.exits import Failed, Misuse, NoVerdict
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
def test_what_is_bad_or_was_not_done_is_1(ended: Ended, words: str) -> None:
    code, said = ended(words, Failed(TEXT))
    assert (code, said.endswith(f"error: {TEXT}\n")) == (1, True)


@pytest.mark.parametrize("words", ALL)
def test_what_is_not_known_is_2_and_no_verdict_and_a_failure_of_what_acts(ended: Ended, words: str) -> None:
    error = ApiError("GET /x", 503, TEXT)
    assert isinstance(error, NoVerdict)
    code, said = ended(words, error)
    prefix, expected = ("error: no verdict", 2) if is_asking(words) else ("error", 1)
    assert (code, said.endswith(f"{prefix}: {error}\n")) == (expected, True)


@pytest.mark.parametrize("error", [Misuse(TEXT), NoStackFileError(TEXT)], ids=["usage", "no-file"])
@pytest.mark.parametrize("words", ALL)
def test_wrong_usage_and_configuration_is_64(ended: Ended, words: str, error: Exception) -> None:
    code, said = ended(words, error)
    assert (code, said.splitlines()[-1].startswith("error: "), TEXT in said) == (64, True, True)


@pytest.mark.parametrize("words", ALL)
def test_a_defect_of_busbar_is_70_with_its_traceback(ended: Ended, words: str) -> None:
    code, said = ended(words, RuntimeError(TEXT))
    assert (code, f"RuntimeError: {TEXT}\nerror: internal: " in said) == (70, True)


@pytest.mark.parametrize("words", ALL)
def test_an_interruption_is_130(ended: Ended, words: str) -> None:
    code, said = ended(words, KeyboardInterrupt())
    assert (code, said.splitlines()[-1].startswith("error: interrupted")) == (130, True)


# The others do not need its configuration, or need no stack.
READS_IT = [words for words in SHOWN_WORDS if words not in {*FIRST, "support-bundle", "status", "destroy"}]


@pytest.mark.parametrize("words", READS_IT)
def test_an_invalid_stack_file_is_64_in_every_command(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = next((each.name for each in capabilities() if each.config and words.startswith(each.name)), "")
    project, key = (f"busbar-{name}", name) if name else ("busbar", "cluster")
    (tmp_path / "Pulumi.yaml").write_text(f"name: {project}\n")
    config = f"{{'{project}:other': {{}}, '{project}:{key}': {{}}}}"
    (tmp_path / "Pulumi.prod.yaml").write_text(f"config: {config}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "build", lambda _: APP)
    monkeypatch.setattr(sys, "argv", ["busbar", *words.split(), "prod", *MORE.get(words, ())])
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capsys.readouterr()
    assert (end.value.code, f"Pulumi.prod.yaml:1 {project}:other: unknown key" in printed.out) == (64, True)
    assert "error: Pulumi.prod.yaml: 1 error; no changes made" in printed.err


def test_no_command_that_the_engine_runs_is_shown() -> None:
    assert ENGINE_COMMANDS and not set(ENGINE_COMMANDS) & set(SHOWN_WORDS)
    for words in ENGINE_COMMANDS:
        command: Any = APP
        for word in words.split():
            command = command.commands[word]
        assert command.hidden or command.name


def test_at_most_41_commands_are_shown() -> None:
    assert len(SHOWN) <= 41
