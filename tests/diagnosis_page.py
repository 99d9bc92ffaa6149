"""Writes the tables of docs/diagnosis.md from rules.yaml and endings.yaml (`make docs`)."""

from __future__ import annotations

import re
from pathlib import Path

from busbar.judge.nccl.diagnose import endings, rules

PAGE = Path(__file__).resolve().parents[1] / "docs" / "diagnosis.md"


def generated(page: str) -> str:
    """The page with the rows of its tables as the rules are; the text around them stays."""
    known = rules.rules()
    by_heading = {
        "From the log as a whole": [_row(rule) for rule in known if not rule.example],
        "From a line": [_row(rule, f"`{rule.example}`") for rule in known if rule.example],
        "How a run ends": [
            f"| {origin} | `{row.example.strip()}` | `{row.rule}` |"
            for origin, rows in endings.known().items()
            for row in rows
        ],
    }
    for heading, rows in by_heading.items():
        table = re.compile(rf"(^## {heading}\n.*?^(?:\|[ -]+)+\|\n)(?:\|[^\n]*\n)*", re.MULTILINE | re.DOTALL)
        [found] = table.finditer(page)
        page = page[: found.end(1)] + "".join(f"{row}\n" for row in rows) + page[found.end() :]
    return page


def _row(rule: rules.Rule, *first: str) -> str:
    cells = [*first, f"`{rule.name}`", rule.severity, rule.meaning, rule.cause, rule.next]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text()))
