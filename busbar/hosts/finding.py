"""Findings: the errors and warnings about a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]
Check = tuple[Level, str, str]
"""An error or warning about the host that is being checked: level, what, fix."""


def error(what: str, fix: str) -> Check:
    """An error, which stops the bring-up."""
    return "error", what, fix


def warning(what: str, fix: str) -> Check:
    """A warning, which does not stop the bring-up."""
    return "warning", what, fix


@dataclass(frozen=True)
class Finding:
    """Something wrong with a host (level "error" stops the bring-up), and how to fix it."""

    host: str
    level: Level
    what: str
    fix: str
    unreachable: bool = False
    """Whether nothing answered at the host's address."""
