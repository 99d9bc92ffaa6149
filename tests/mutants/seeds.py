"""The mutants of an area: which there are, which compile, and which are not counted."""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

PROJECT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["mutants"]
# A capability is one area.
AREAS: dict[str, dict[str, list[str]]] = SETTINGS["areas"] | {
    folder.name: {
        "source": [f"stacks/{folder.name}/package"],
        "tests": [f"stacks/{folder.name}/tests/{room}" for room in ("unit", "program")],
    }
    for folder in sorted(PROJECT.glob("stacks/*"))
    if (folder / "capability.py").is_file()
}
NOT_COUNTED = Path(__file__).with_name("not_counted.toml")
ENTRIES = tomllib.loads(NOT_COUNTED.read_text())["mutant"]


@dataclass(frozen=True)
class Mutant:
    """One changed place in one file. `functions`: the qualified names of the functions on its line."""

    file: str
    line: int
    code: str
    diff: str
    functions: frozenset[str]
    counted: bool


def files_of(area: str) -> list[str]:
    """The source files of AREA, relative to the project."""
    folders = AREAS[area]["source"]
    return sorted(
        str(path.relative_to(PROJECT)) for folder in folders for path in (PROJECT / folder).rglob("*.py")
    )


def mutants(area: str, seed: int, only: str) -> Iterator[Mutant]:
    """All mutants of AREA that compile, in an order that SEED decides. ONLY: a file or file:line."""
    for _, file, operator, occurrence, line in _places(area, seed):
        if only not in ("", file, f"{file}:{line}"):
            continue
        original = (PROJECT / file).read_text()
        code = mutate_code(original, get_operator(operator)(), occurrence)
        try:
            compile(code, file, "exec")
        except SyntaxError:
            continue
        diff = list(difflib.unified_diff(original.splitlines(), code.splitlines(), n=0, lineterm=""))[3:]
        removed, added = ("\n".join(text[1:] for text in diff if text[0] == sign) for sign in "-+")
        functions = frozenset(_functions(compile(original, file, "exec"), line)) or frozenset({"<module>"})
        yield Mutant(file, line, code, "\n".join(diff), functions, _is_counted(file, removed, added))


def _places(area: str, seed: int) -> list[tuple[str, str, str, int, int]]:
    """(rank, file, operator, occurrence, line) of every mutant; the seed decides the rank."""
    wanted = re.compile("|".join(f"core/(?:{pattern})" for pattern in SETTINGS["operators"]))
    operators = {name: get_operator(name)() for name in operator_names() if wanted.fullmatch(name)}
    found = []
    for file in files_of(area):
        nodes = list(ast_nodes(get_ast((PROJECT / file).read_text())))
        for name, operator in operators.items():
            lines = [start[0] for node in nodes for start, _ in operator.mutation_positions(node)]
            for occurrence, line in enumerate(lines):
                rank = hashlib.sha256(f"{seed} {file} {name} {occurrence}".encode()).hexdigest()
                found.append((rank, file, name, occurrence, line))
    return sorted(found)


def _functions(code: CodeType, line: int) -> Iterator[str]:
    if any(number == line for _, _, number in code.co_lines()):
        yield code.co_qualname
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _functions(constant, line)


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
