"""The mutants of an area: which there are, which compile, and which are not counted.

Cosmic Ray's operators make those of Python. In bash and YAML a line is left out: a command, or a value.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

PROJECT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["mutants"]
CAPABILITIES = sorted(path.parent.name for path in PROJECT.glob("stacks/*/capability.py"))
# A capability is an area, and its charts and values are another.
AREAS: dict[str, dict[str, Any]] = {
    **SETTINGS["areas"],
    **{
        name: {
            "source": [f"stacks/{name}/package"],
            "tests": [
                tests
                for room in ("unit", "program")
                if (PROJECT / (tests := f"stacks/{name}/tests/{room}")).is_dir()
            ],
        }
        for name in CAPABILITIES
    },
    **{
        f"{name}-charts": {
            "source": [f"stacks/{name}/charts", f"stacks/{name}/helm_values"],
            "tests": [f"stacks/{name}/tests/unit"],
            "named": True,
        }
        for name in CAPABILITIES
    },
}
NOT_COUNTED = Path(__file__).with_name("not_counted.toml")
ENTRIES = tomllib.loads(NOT_COUNTED.read_text())["mutant"]
LEFT_OUT = "line"
# suffix -> the lines that may be left out
LINES = {
    ".sh": re.compile(r"\s+(?!local |fi$|done$|esac$|else$|\w+\)$)[\w\[(]"),
    ".yaml": re.compile(r"\s*(?:- )?[\w./-]+: *\S"),
    ".j2": re.compile(r"\s*[^\s{#]"),
}


@dataclass(frozen=True)
class Mutant:
    """One changed place in one file."""

    file: str
    line: int
    code: str
    diff: str
    counted: bool


def files_of(area: str) -> list[str]:
    """The source files of AREA, relative to the project."""
    paths = (path for folder in AREAS[area]["source"] for path in (PROJECT / folder).rglob("*"))
    return sorted(str(path.relative_to(PROJECT)) for path in paths if path.suffix in {".py", *LINES})


def mutants(area: str, seed: int, only: str) -> Iterator[Mutant]:
    """All mutants of AREA that compile, in an order that SEED decides. ONLY: a file or file:line."""
    for _, file, operator, occurrence, line in _places(area, seed):
        if only not in ("", file, f"{file}:{line}"):
            continue
        original = (PROJECT / file).read_text()
        code = _changed(original, operator, occurrence)
        if not _compiles(file, code):
            continue
        diff = list(difflib.unified_diff(original.splitlines(), code.splitlines(), n=0, lineterm=""))[3:]
        removed, added = ("\n".join(text[1:] for text in diff if text[0] == sign) for sign in "-+")
        yield Mutant(file, line, code, "\n".join(diff), _is_counted(file, removed, added))


def _places(area: str, seed: int) -> list[tuple[str, str, str, int, int]]:
    """(rank, file, operator, occurrence, line) of every mutant; the seed decides the rank."""
    wanted = re.compile("|".join(f"core/(?:{pattern})" for pattern in SETTINGS["operators"]))
    operators = {name: get_operator(name)() for name in operator_names() if wanted.fullmatch(name)}
    found = []
    for file in files_of(area):
        text = (PROJECT / file).read_text()
        if pattern := LINES.get(Path(file).suffix):
            places = [(LEFT_OUT, i, i + 1) for i, line in enumerate(text.splitlines()) if pattern.match(line)]
        else:
            nodes = list(ast_nodes(get_ast(text)))
            places = [
                (name, *place)
                for name, operator in operators.items()
                for place in enumerate(at[0] for node in nodes for at, _ in operator.mutation_positions(node))
            ]
        for name, occurrence, line in places:
            rank = hashlib.sha256(f"{seed} {file} {name} {occurrence}".encode()).hexdigest()
            found.append((rank, file, name, occurrence, line))
    return sorted(found)


def _changed(original: str, operator: str, occurrence: int) -> str:
    if operator != LEFT_OUT:
        return mutate_code(original, get_operator(operator)(), occurrence)
    lines = original.splitlines(keepends=True)
    return "".join(lines[:occurrence] + lines[occurrence + 1 :])


def _compiles(file: str, code: str) -> bool:
    if file.endswith(".sh"):
        return subprocess.run(["bash", "-n"], input=code.encode(), capture_output=True).returncode == 0
    try:
        return not file.endswith(".py") or compile(code, file, "exec") is not None
    except SyntaxError:
        return False


def _is_counted(file: str, removed: str, added: str) -> bool:
    return not any(
        fnmatch(file, entry["file"]) and entry["before"] in removed and entry.get("after", "") in added
        for entry in ENTRIES
    )


def stale_entries() -> list[str]:
    """Entries of not_counted.toml whose text no file contains any more, one message each."""
    texts = {file: (PROJECT / file).read_text() for area in AREAS for file in files_of(area)}
    return [
        f"{NOT_COUNTED.name}: no file {entry['file']} contains {entry['before']!r}. Fix: remove the entry."
        for entry in ENTRIES
        if not any(fnmatch(file, entry["file"]) and entry["before"] in text for file, text in texts.items())
    ]
