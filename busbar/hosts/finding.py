"""What is wrong with a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """Something wrong with a host (level "error" stops the bring-up), and how to fix it."""

    host: str
    level: Literal["error", "warning"]
    what: str
    fix: str
    unreachable: bool = False
    """Whether nothing answered at the host's address."""
