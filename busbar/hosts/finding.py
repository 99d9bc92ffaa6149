"""What is wrong with a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]
Check = tuple[Level, str, str]
"""Something wrong with the host that is checked: level, what, fix."""


def error(what: str, fix: str) -> Check:
    """What stops the bring-up."""
    return "error", what, fix


def warning(what: str, fix: str) -> Check:
    """What does not stop it."""
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
