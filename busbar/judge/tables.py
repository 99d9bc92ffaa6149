"""Verdicts for a terminal: a headline, tables, and the whole verdict where it is on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from busbar.judge.archive import VERDICT

STYLES = {"pass": "green", "fail": "bold red", "unknown": "yellow", "not-required": "dim"}


def passed(text: str) -> Text:
    """The headline of a pass."""
    return Text(f"PASS  {text}", "bold green")


def not_passed(text: str, reasons: Iterable[object] | None, mark: str = "FAIL") -> Text:
    """The headline of anything else, with its reasons."""
    made = Text(f"{mark}  {text}", "bold red")
    for reason in reasons or ():
        made.append(f"\n      {reason}", "red")
    return made


def notes(found: Iterable[tuple[str, str]]) -> list[Text]:
    """The notes below the tables: a name and a text each."""
    return [Text(f"{name:>12}  {text}") for name, text in found]


def kept_verdict(
    pool: str, folder: Path | None, location: object, same: Callable[[Any], bool]
) -> Mapping[str, Any] | None:
    """The whole verdict on a pool, if it is on this machine and the outputs were made from it; else None.

    It is in `folder`, else at `location`. `same` tells whether a verdict is the one of the outputs, because
    the stack may have been updated elsewhere since. If `same` raises, the file is not a verdict.
    """
    path = folder / pool / VERDICT if folder else Path(str(location))
    try:
        verdict = json.loads(path.read_text(encoding="utf-8"))
        return verdict if same(verdict) else None
    except (OSError, ValueError, AttributeError):
        return None


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines; `right`: further columns, aligned to the right."""
    made = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in right:
        made.add_column(column, justify="right")
    return made


def styled(status: str) -> Text:
    """pass, fail, unknown or not-required in its color."""
    return Text(status, STYLES.get(status, ""))


def check_table(verdicts: Mapping[str, Mapping[str, Any] | None]) -> Table:
    """One row per check that was made; checks that this measurement does not need share one row.

    `verdicts`: by pool, with `checks`: objects of name, status and reason.
    """
    made = table("pool", "check", "status", "reason")
    for pool, verdict in verdicts.items():
        not_required = []
        for check in (verdict or {}).get("checks") or []:
            name, status = str(check.get("name")), str(check.get("status"))
            if status == "not-required":
                not_required.append(name)
            else:
                made.add_row(pool, name, styled(status), Text(str(check.get("reason") or "")))
        if not_required:
            names = Text(", ".join(not_required))
            made.add_row(pool, "(not required)", "", names, style=STYLES["not-required"])
    return made
