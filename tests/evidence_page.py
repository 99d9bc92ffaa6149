"""Writes the tables of docs/evidence.md: what sites install, and which drills have passed (`make docs`)."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from importlib import import_module
from pathlib import Path
from typing import Any

from busbar import versions
from busbar.capability import capabilities
from busbar.versions import Default
from tests.support.drills import PAGE, PROJECT, REQUESTS, passes


def generated(page: str) -> str:
    """The page with the rows of its tables as defaults and passes are; the text around them stays."""
    for heading, rows in (
        ("What a site installs by default", _rows_of_defaults()),
        ("Drills", rows_of_drills(PROJECT, passes(PROJECT))),
    ):
        table = re.compile(rf"(^## {heading}\n.*?^(?:\|[ -]+)+\|\n)(?:\|[^\n]*\n)*", re.MULTILINE | re.DOTALL)
        [found] = table.finditer(page)
        page = page[: found.end(1)] + "".join(f"{row}\n" for row in rows) + page[found.end() :]
    return page


def drills(path: Path) -> dict[str, str | None]:
    """The tests of a file that are drills, and what each needs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_module = [
        each.value
        for each in tree.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark"
    ]
    found: dict[str, str | None] = {}
    for each in tree.body:
        if isinstance(each, ast.FunctionDef) and each.name.startswith("test_"):
            # The marker of a function is nearer than that of its module.
            for marks in (*each.decorator_list, *of_module):
                if "mark.drill" in (text := ast.unparse(marks)):
                    needs = re.search(r"mark\.drill\(needs='([^']+)'\)", text)
                    found.setdefault(each.name, needs[1] if needs else None)
    return found


def rows_of_drills(folder: Path, known: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A row per file with a recorded pass, then one per folder for the tests of its other files."""
    without: dict[str, dict[str, str | None]] = {}
    for path in sorted([*folder.glob("tests/*/test_*.py"), *folder.glob("stacks/*/tests/lab/**/test_*.py")]):
        file, needs = str(path.relative_to(folder)), drills(path)
        if lines := {name: line for name, line in known.items() if name.startswith(f"{file}::")}:
            yield _row_of_file(file, needs, lines)
        else:
            without.setdefault(str(path.parent.relative_to(folder)), {}).update(
                {f"{file}::{name}": each for name, each in needs.items()}
            )
    for name, needs in without.items():
        if needs:
            yield _row(
                f"`{name}`, files without a pass",
                f"0 of {len(needs)}",
                "",
                "",
                "",
                "",
                _lacking(needs, set()),
            )


def _row_of_file(file: str, needs: Mapping[str, str | None], lines: Mapping[str, Mapping[str, Any]]) -> str:
    passed = {re.split(r"::|\[", name)[1] for name in lines} & needs.keys()
    dates = sorted(line["date"] for line in lines.values())
    requests, repeated = (sum(line.get(name, 0) for line in lines.values()) for name in REQUESTS)
    return _row(
        f"`{file}`",
        f"{len(passed)} of {len(needs)}",
        " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        ", ".join(sorted({line["k3s"] for line in lines.values() if "k3s" in line})),
        f"{sum(line['seconds'] for line in lines.values()):,} s",
        f"{repeated:,} of {requests:,}" if requests else "",
        _lacking(needs, passed),
    )


def _lacking(needs: Mapping[str, str | None], passed: Set[str]) -> str:
    """The needs of drills without a pass, and how many drills have each."""
    counts = Counter(need for name, need in needs.items() if need and name not in passed)
    return "; ".join(f"{count} not run here: needs {need}" for need, count in sorted(counts.items()))


def _rows_of_defaults() -> Iterator[str]:
    """A row for all names of a part that have the same version and were run in the same place."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for part, kind, name, version, run in _defaults():
        rows.setdefault((part, kind, version, run), []).append(name)
    for (part, kind, version, run), names in rows.items():
        yield _row(part, kind, ", ".join(names), version, run)


def _defaults() -> Iterator[tuple[str, str, str, str, str]]:
    for part in ("core", *(each.name for each in capabilities())):
        folder = PROJECT / "stacks" / part
        if part == "core":
            defaults: Sequence[Default] = versions.DEFAULTS
        elif (folder / "package" / "versions.py").exists():
            defaults = import_module(f"stacks.{part}.package.versions").DEFAULTS
        else:
            defaults = ()
        yield from ((part, each.kind, each.name, each.version, each.run(each.version)) for each in defaults)
    # A capability with hosts of its own lists what these fetch.
    for capability in capabilities():
        if capability.operations:
            example = PROJECT / "stacks" / capability.name / "Pulumi.h100.example.yaml"
            needed = capability.on_hosts(example).needs(example)
            yield from ((capability.name, each.kind, each.name, "", each.run) for each in needed.artifacts)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    path = PROJECT / PAGE
    path.write_text(generated(path.read_text(encoding="utf-8")), encoding="utf-8")
