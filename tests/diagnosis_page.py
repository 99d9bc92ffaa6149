"""Writes the tables of docs/diagnosis.md from failures.yaml (`make docs`)."""

import re
from pathlib import Path

import yaml

from busbar.judge.nccl.log.known import Failure, failures

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "diagnosis.md"
LINES: dict[str, str] = yaml.safe_load((ROOT / "tests/unit/judge/nccl/made/diagnoses.yaml").read_text())


def generated(page: str) -> str:
    """The page with the rows of its tables as the rules are; the text around them stays."""
    known = failures()
    by_heading = {
        "From the log as a whole": [_row(rule) for rule in known if not rule.lines],
        "From a line": [_row(rule, f"`{LINES[rule.name]}`") for rule in known if rule.lines],
        "How a run ends": [
            f"| {row.of} | `{example.strip()}` | `{rule.name}` |"
            for rule in known
            for row in rule.lines
            for example in ([row.example] if row.example else row.contains)
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
