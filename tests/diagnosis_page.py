"""Writes the tables of docs/diagnosis.md from failures.yaml (`make docs`)."""

from __future__ import annotations

import re
from pathlib import Path

from busbar.judge.nccl.log.known import Failure, failures

PAGE = Path(__file__).resolve().parents[1] / "docs" / "diagnosis.md"


def generated(page: str) -> str:
    """The page with the rows of its tables as the rules are; the text around them stays."""
    known = failures()
    by_heading = {
        "From the log as a whole": [_row(rule) for rule in known if not rule.lines],
        "From a line": [_row(rule, f"`{rule.lines[0].examples[0]}`") for rule in known if rule.lines],
        "How a run ends": [
            f"| {row.of} | `{example.strip()}` | `{rule.name}` |"
            for rule in known
            for row in rule.lines
            for example in row.examples
            if row.of
        ],
    }
    for heading, rows in by_heading.items():
        table = re.compile(rf"(^## {heading}\n.*?^(?:\|[ -]+)+\|\n)(?:\|[^\n]*\n)*", re.MULTILINE | re.DOTALL)
        [found] = table.finditer(page)
        page = page[: found.end(1)] + "".join(f"{row}\n" for row in rows) + page[found.end() :]
    return page


def _row(rule: Failure, *first: str) -> str:
    cells = [*first, f"`{rule.name}`", rule.severity, rule.meaning, rule.cause, rule.next]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text()))
