"""Every command of busbar that a Fix or a sentence of the product names exists, with its options."""

import ast
import os
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from busbar.cli.docs import pages
from busbar.cli.main import build
from busbar.cli.stackfile import SecretError, open_file, read_output
from busbar.finding import STACK, Fix, with_fix
from tests.support.bash import programs

ROOT = Path(__file__).resolve().parents[3]
APP: Any = build()
PRODUCT = [
    path
    for pattern in ("busbar/**/*.py", "components/**/*.py", "stacks/*/package/**/*.py")
    for path in sorted(ROOT.glob(pattern))
]
SCRIPTS = [path for pattern in ("host/*.sh", "stacks/*/host/*.sh") for path in sorted(ROOT.glob(pattern))]
STACK_FILES = [*ROOT.glob("Pulumi*.yaml"), *ROOT.glob("stacks/*/Pulumi*.yaml")]
# `busbar up` in a sentence; what is not a command, such as "busbar writes", has no word of the command line.
IN_TEXT = re.compile(r"(?<![\w./-])busbar (?P<words>[a-z_-]+(?: [^\s`'\";,:.)|&>]+)*)")
OF_PULUMI = re.compile(
    r"pulumi (cancel|refresh --|config set --secret|stack (rm|init)|state delete)([^`\n]*`|[^`\n]*$)",
    re.MULTILINE,
)
TOLD = re.compile(r"(?:Fix: |run |[Tt]hen |first )`?busbar (?P<words>[a-z_-]+(?: (?:[a-z_]+|STACK|\{))*)")
SECTION = re.compile(
    r"docs[/ ](?P<page>[a-z-]+)(?:\.md,)? (?P<quote>'?)(?P<section>[A-Z][a-z]+(?: [a-z]+)*)(?P=quote)"
)
UNKNOWN = "{}"


def texts() -> Iterator[tuple[Path, str]]:
    """Each file below the project with its text, in which the parts of a sentence are one."""
    for path in [*PRODUCT, *SCRIPTS, *STACK_FILES]:
        yield path.relative_to(ROOT), re.sub(r'"\s*\n\s*f?"', "", path.read_text())


def as_words(node: ast.expr) -> list[str]:
    """The words of a tuple in the source; UNKNOWN where they are known only later."""
    if not isinstance(node, ast.Tuple):
        return [UNKNOWN]
    return [str(each.value) if isinstance(each, ast.Constant) else UNKNOWN for each in node.elts]


def commands_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and words of the command of every Fix in a file."""
    text = path.read_text()
    # Most files have none, and to parse all takes two seconds at every collection.
    for node in ast.walk(ast.parse(text)) if "Fix(" in text else ():
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fix"):
            continue
        given = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "command")]
        yield from ((node.lineno, as_words(each)) for each in given)


def problems(words: list[str]) -> list[str]:
    """Return options of a command that the command line does not have."""
    command, words = APP, list(words)
    while hasattr(command, "commands"):
        word = words.pop(0) if words else "nothing"
        if word not in command.commands:
            return [f"no command {word}"]
        command = command.commands[word]
    options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    shown = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    needed = [each for each in command.params if each.required]
    arguments = [each.metavar or each.name for each in needed if each.param_type_name == "argument"]
    given = [*takewhile(lambda word: not word.startswith("-"), words)]
    lacking = [each.name for each in needed if each.param_type_name == "option" and not shown & {*each.opts}]
    missing = [f"no {name}" for name in (*arguments[len(given) :], *lacking)]
    return [*sorted(shown - options - {"--help"}), *missing]


FIXES = {
    f"{path.relative_to(ROOT)}:{line}": words
    for path in PRODUCT
    for line, words in commands_of(path)
    if words[0] != UNKNOWN
}


@pytest.mark.parametrize("where", FIXES)
def test_the_command_of_every_fix_exists_with_its_options(where: str) -> None:
    assert problems(FIXES[where]) == []


def test_no_sentence_names_an_option_that_its_command_does_not_have() -> None:
    wrong = []
    for path, text in texts():
        for found in IN_TEXT.finditer(text):
            missing = [each for each in problems(found["words"].split()) if each.startswith("-")]
            wrong += [f"{path}: busbar {found['words']}: {each}" for each in missing]
    assert not wrong


def test_a_fix_of_an_option_that_a_command_lacks_is_found(tmp_path: Path) -> None:
    source = tmp_path / "fixes.py"
    source.write_text(
        'Fix("else", ("measure", stack, "--namespace", name))\nFix(command=("nosuch",))\n'
        'Fix(command=("uncordon", STACK))\nFix(command=("restore", STACK))'
    )
    found = [problems(words) for _, words in commands_of(source)]
    assert found == [["--namespace"], ["no command nosuch"], ["no HOST"], ["no snapshot"]]


def test_a_command_that_a_sentence_tells_to_run_names_its_stack() -> None:
    told = [(path, found) for path, text in texts() for found in TOLD.finditer(text)]
    assert told
    assert not [(path, found[0]) for path, found in told if "no STACK" in problems(found["words"].split())]


def test_every_command_of_pulumi_on_a_stack_names_it() -> None:
    """Without it Pulumi takes the one that was selected last, and a secret may go into its file."""
    told = [(path, found[0]) for path, text in texts() for found in OF_PULUMI.finditer(text)]
    assert told
    assert not [each for each in told if "--stack " not in each[1]]


def test_every_section_that_a_sentence_or_a_fix_names_exists() -> None:
    known = pages()
    named = [(words[1], words[2].strip("'")) for words in FIXES.values() if "docs" in words[:1] and words[2:]]
    named += [(found["page"], found["section"]) for _, text in texts() for found in SECTION.finditer(text)]
    assert named
    for page, section in named:
        assert page not in known or f"# {section}\n" in known[page].read_text(), (page, section)


def test_a_fix_is_shown_as_a_sentence_a_command_and_what_comes_after_it() -> None:
    assert str(Fix("when it is done", ("uncordon", STACK, "a"))) == "when it is done: busbar uncordon STACK a"
    assert str(Fix(command=("up", "dev"), when="first, then destroy")) == "busbar up dev first, then destroy"
    assert str(Fix(command=("up", "dev"), when="; or wait")) == "busbar up dev; or wait"
    assert with_fix("it is off", "") == "it is off"
    assert with_fix("it says: No.", "ask again") == "it says: No. Fix: ask again"


@pytest.mark.parametrize(
    ("here", "named", "project", "shown"),
    [
        ("site", "prod", None, "prod"),
        ("site/docs", "prod", None, "prod"),
        ("site", "../site/Pulumi.prod.yaml", None, "prod"),
        ("other", "prod", "../site", "prod --project ../site"),
        ("other", "../site/Pulumi.prod.yaml", None, "prod --project ../site"),
        ("", "organization/busbar/prod", "site", "prod --project site"),
    ],
)
def test_a_fix_works_where_its_command_was_typed(
    here: str, named: str, project: str | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("site/docs", "other"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("site/Pulumi.yaml", "site/Pulumi.prod.yaml", "other/Pulumi.yaml", "other/Pulumi.prod.yaml"):
        (tmp_path / file).write_text("name: busbar")
    monkeypatch.chdir(tmp_path / here)
    open_file(named, Path(project) if project else None)
    assert str(Fix(command=("uncordon", STACK, "gpu-1"))) == f"busbar uncordon {shown} gpu-1"
    assert str(Fix(command=("hosts", "keys", STACK))) == f"busbar hosts keys {shown}"
    of_pulumi = f"pulumi cancel --stack {shown.replace('--project', '--cwd')}"
    assert with_fix("it is locked", "pulumi cancel --stack STACK") == f"it is locked. Fix: {of_pulumi}"
    assert str(Fix(command=("up", "prod", "--converge", "prod"))) == f"busbar up {shown} --converge prod"
    assert str(Fix(command=("up", "test"))) == "busbar up test"


def test_the_fix_of_another_stack_of_the_same_name_has_its_folder(tmp_path: Path, monkeypatch: Any) -> None:
    for folder, project in (("site", "busbar"), ("site/watch", "busbar-watch")):
        (tmp_path / folder).mkdir()
        for file in ("Pulumi.yaml", "Pulumi.prod.yaml"):
            (tmp_path / folder / file).write_text(f"name: {project}")
    programs(tmp_path, {"pulumi": "echo current stack does not have output property >&2; exit 1"})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path / "site")
    open_file("prod", Path("watch"))
    for stack, folder, shown in (
        ("prod", "../site", "prod --project ."),
        ("prod", "watch", "prod --project watch"),
        ("organization/busbar/prod", "watch", "prod in the folder of busbar"),
    ):
        with pytest.raises(SecretError, match=f"Fix: busbar up {shown}, because"):
            read_output(stack, Path(folder), "kubeconfig")
