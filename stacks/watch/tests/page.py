"""Writes the sections of the page of alerts anew, from the files of the rules (`make docs`)."""

import re
from pathlib import Path
from typing import Any

from stacks.watch.package.render import FILES, FOLDER, PAGE, written

FILE = Path(__file__).resolve().parents[3] / PAGE
MARK = "<!-- From here on `make docs` writes this page. -->\n"
TITLES = {"cluster": "Cluster", "rails": "Rails", "gpus": "GPUs"}
_TEMPLATES = (
    (re.compile(r"\{\{ \$labels\.(\w+) }}"), lambda found: str(found[1]).upper()),
    (re.compile(r"\{\{ \$value[^}]*}}"), lambda _: "N"),
)


def page(text: str) -> str:
    """The page with its sections written anew."""
    parts = [text.partition(MARK)[0] + MARK]
    for group in FILES:
        notes = _notes((FOLDER / f"{group}.yaml").read_text(encoding="utf-8"))
        parts.append(f"\n## {TITLES[group]}\n")
        rules = [rule for found in written(group) for rule in found["rules"] if "alert" in rule]
        parts += [_section(rule, notes[rule["alert"]]) for rule in rules]
    return "".join(parts)


def _section(rule: dict[str, Any], note: str) -> str:
    summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
    for pattern, name in _TEMPLATES:
        summary = pattern.sub(name, summary)
    after = f", after {rule['for']}" if "for" in rule else ""
    head = f"{summary[0].upper()}{summary[1:]} ({rule['labels']['severity']}{after}). {note}".strip()
    return f"\n### {rule['alert']}\n\n{head} {description}.\n"


def _notes(text: str) -> dict[str, str]:
    """Alert -> the comment above it."""
    found = re.findall(r"^((?:  # .*\n)*)  - alert: (\w+)$", text, re.MULTILINE)
    return {alert: " ".join(line[4:] for line in comment.splitlines()) for comment, alert in found}


if __name__ == "__main__":
    FILE.write_text(page(FILE.read_text(encoding="utf-8")), encoding="utf-8")
