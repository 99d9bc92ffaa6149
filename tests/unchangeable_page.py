"""Writes the table of docs/hosts.md on keys that cannot be changed (`make docs`)."""

import re
from pathlib import Path

from busbar.preflight.unchangeable import KEYS, Key

PAGE = Path(__file__).resolve().parents[1] / "docs" / "hosts.md"
_TABLE = re.compile(
    r"(^## What cannot be changed\n.*?^(?:\|[ -]+)+\|\n)(?:\|[^\n]*\n)*", re.MULTILINE | re.DOTALL
)


def generated(page: str) -> str:
    """The page with the rows of its table as the keys are; the text around them stays."""
    [found] = _TABLE.finditer(page)
    return page[: found.end(1)] + "".join(map(_row, KEYS)) + page[found.end() :]


def _row(key: Key) -> str:
    fix = key.fix.format(first="VALUE")
    return f"| `{key.name}` | {key.read} | {key.why} | {fix} |\n"


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text()))
