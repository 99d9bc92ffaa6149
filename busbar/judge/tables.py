"""Tables of results for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

STYLES = {"pass": "green", "fail": "bold red", "unknown": "yellow", "not-required": "dim"}


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
    """One row per check that was made; those that this measurement does not need share one row.

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
