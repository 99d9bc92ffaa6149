"""What all commands have in common: arguments, help, errors and their exit codes, completion."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from busbar.capability import capabilities
from busbar.cli import main as cli
from busbar.cli.ending import end
from busbar.cli.engine import ENGINE_COMMANDS
from busbar.cli.main import build
from busbar.cli.operation import confirm
from busbar.config.stackfile import EXAMPLE
from busbar.exits import Failed, Misuse
from busbar.kube.client import ApiError

ROOT = Path(__file__).resolve().parents[3]
APP: Any = build()


def commands(group: Any = APP, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that the help shows, with its words."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


SHOWN = dict(commands())
ON_A_STACK = [words for words, each in SHOWN.items() if any(param.name == "stack" for param in each.params)]

# The arguments that a command needs besides the stack.
NEEDED = {"drain": "gpu-1", "uncordon": "gpu-1", "restore": "--snapshot=daily"}
# Commands that do not read the configuration. A support bundle must be made for an invalid file too.
WITHOUT_CONFIG = [("schema",), ("history",), ("support-bundle",)]


def options(words: tuple[str, ...], name: str) -> list[str]:
    return next((sorted(param.opts) for param in SHOWN[words].params if param.name == name), [])


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, stdout and stderr of `busbar`, called in the checkout."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(cli, "build", lambda _: APP)

    def run(*words: str, **environment: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["busbar", *words])
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("words", ON_A_STACK, ids=" ".join)
def test_a_stack_is_named_and_its_project_chosen_in_one_way(words: tuple[str, ...]) -> None:
    assert options(words, "project") == ["--project", "-C"]
    stack = next(param for param in SHOWN[words].params if param.name == "stack")
    assert stack.metavar == "STACK"


@pytest.mark.parametrize("project", ["busbar", *(each.name for each in capabilities() if each.config)])
@pytest.mark.parametrize(
    "words", [words for words in ON_A_STACK if words not in WITHOUT_CONFIG], ids=" ".join
)
def test_an_invalid_stack_file_of_any_project_is_bad_usage_and_no_failed_fabric(
    run: Run, words: tuple[str, ...], project: str, tmp_path: Path
) -> None:
    names = {each.name for each in capabilities()}
    is_own = project == (words[0] if words[0] in names else "busbar")
    key = "cluster" if project == "busbar" else project
    name = "busbar" if project == "busbar" else f"busbar-{project}"
    (tmp_path / "Pulumi.yaml").write_text(f"name: {name}\n")
    (tmp_path / "Pulumi.prod.yaml").write_text(f"config: {{'{name}:no_such_key': 1, '{name}:{key}': {{}}}}\n")
    code, printed, said = run(*words, "prod", *filter(None, [NEEDED.get(words[-1])]), "-C", str(tmp_path))
    assert (code, "internal" in said) == (64, False), said
    if is_own and words[0] not in ("status", "destroy"):  # these do not need it
        assert f"Pulumi.prod.yaml:1 {name}:no_such_key: unknown key" in printed
        assert "error: Pulumi.prod.yaml: 1 error; no changes made" in said


@pytest.mark.parametrize("command", ["check-config", "preview"])
@pytest.mark.parametrize(("project", "other"), [("busbar-slurm", "busbar"), ("busbar", "busbar-training")])
def test_a_stack_file_of_another_project_is_named(
    run: Run, command: str, project: str, other: str, tmp_path: Path
) -> None:
    folder = ROOT / other.replace("busbar-", "stacks/").removeprefix("busbar")
    (tmp_path / "Pulumi.yaml").write_text(f"name: {project}\n")
    (tmp_path / "Pulumi.prod.yaml").write_text((folder / EXAMPLE).read_text())
    code, printed, said = run(command, "prod", "-C", str(tmp_path))
    assert code == 64 and f"this is a stack file of the project {other}" in printed + said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("destroy", "dev", "--parallel", "0"), "Invalid value for '--parallel' "),
        (("up",), "Missing argument 'STACK'. Fix: see busbar up --help"),
        (("nosuch",), "No such command 'nosuch'. Fix: see busbar --help"),
        (("statu",), "No such command 'statu'. Did you mean 'status'? Fix: see busbar --help"),
        (("check-config", "dev", "--x"), "No such option: --x. Fix: see busbar check-config --help"),
        (("nccl", "check", "/nosuch"), "/nosuch:"),
        (("status", "nosuch"), f"{ROOT}/Pulumi.nosuch.yaml does not exist;"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_every_error_is_one_line_with_one_prefix(run: Run, words: tuple[str, ...], message: str) -> None:
    code, printed, said = run(*words)
    assert (code, printed) == (64, "")
    assert said.startswith(f"error: {message}") and len(said.splitlines()) == 1


@pytest.mark.parametrize("words", ON_A_STACK, ids=" ".join)
def test_every_command_exits_with_64_where_there_is_no_stack(run: Run, words: tuple[str, ...]) -> None:
    code, _, said = run(*words, "nosuch", *filter(None, [NEEDED.get(words[-1])]))
    assert code == 64 and "Pulumi.nosuch.yaml" in said


def test_a_command_does_not_wait_for_stdin_at_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    code, _, error = run("preflight")
    assert code == 64 and error.startswith("error: Missing argument 'STACK'")


@pytest.mark.parametrize("command", ["up", "destroy"])
@pytest.mark.parametrize("terminal", [True, False])
def test_without_a_terminal_and_without_yes_nothing_is_started(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, terminal: bool
) -> None:
    """Where stdin is a terminal and stdout is none, the question would go into a file."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: terminal))
    code, _, said = run(command, "dev", "-C", "examples/consumer", PATH=str(tmp_path))
    assert (code, "--yes" in said) == (64, True)


def test_without_arguments_the_help_is_shown(run: Run) -> None:
    code, printed, said = run()
    assert (code, said) == (64, "") and "Usage: busbar" in printed
    assert "Exit codes: 0 done" in printed


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("busbar pre", ["preview", "preflight"]),
        *((line, ["dev"]) for line in ("busbar up d", "busbar check-config -C examples/consumer ")),
    ],
)
def test_a_shell_completes_commands_and_stacks(run: Run, line: str, found: list[str]) -> None:
    words = line.split()
    count = len(words) if line.endswith(" ") else len(words) - 1
    _, printed, said = run(_BUSBAR_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(count))
    assert printed.split() == found, said


REFUSED = "error: no changes made: the command asks before it changes anything"


@pytest.mark.parametrize(
    ("terminal", "answer", "code", "said"),
    [(False, True, 64, REFUSED), (True, False, 1, "no changes made\n")],
)
def test_without_a_yes_nothing_is_changed(
    terminal: bool, answer: bool, code: int, said: str, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: terminal))
    monkeypatch.setattr(typer, "confirm", lambda _: answer)
    with pytest.raises(typer.Exit) as ended:
        confirm(yes=False)
    assert ended.value.exit_code == code
    assert capsys.readouterr().err.startswith(said)


def test_ctrl_c_at_a_question_is_an_interruption_and_no_error_of_busbar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(_: Any) -> None:
        raise typer.Abort

    monkeypatch.setattr(cli, "build", asked)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "error: interrupted; no changes made\n"


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "No space left on device. Fix: free space"),
        (errno.EACCES, "Permission denied. Fix: give your user access to it"),
    ],
)
def test_a_full_disk_and_files_of_others_are_no_errors_of_busbar(number: int, says: str, capsys: Any) -> None:
    assert end(OSError(number, os.strerror(number), "Pulumi.prod.yaml")) == 1
    assert capsys.readouterr().err.startswith(f"error: Pulumi.prod.yaml: {says}")


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
MORE = {**{word: (value,) for word, value in NEEDED.items()}, "up": ("--yes",), "destroy": ("--yes",)}
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
        (RuntimeError(TEXT), 70, "error: internal: "),
        (KeyboardInterrupt(), 130, "error: interrupted"),
    ],
    ids=["bad or not done", "not known", "usage", "defect", "interruption"],
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
