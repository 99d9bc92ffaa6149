"""Known failure shapes: which text means what, why, and what to run next (data: diagnosis.yaml)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict

from busbar.nccl.data import read_yaml
from busbar.nccl.verdict import Diagnosis

SEVERITIES = ("fatal", "degraded", "note")

NO_DIGITS = str.maketrans("", "", "0123456789abcdef")
SILENT_KEPT = 2000


class Shape(BaseModel):
    """One entry of diagnosis.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    severity: Literal["fatal", "degraded", "note"]
    hint: str
    text: str
    example: str
    meaning: str
    cause: str
    next: str


@cache
def shapes() -> tuple[Shape, ...]:
    """All known shapes, in file order."""
    return tuple(Shape(**entry) for entry in read_yaml("busbar.nccl.diagnose", "diagnosis.yaml"))


def hints() -> list[str]:
    """Literal parts of which one is in every line that has a known shape."""
    return sorted({s.hint for s in shapes()})


@cache
def _compiled() -> tuple[re.Pattern[str], tuple[tuple[Shape, re.Pattern[str]], ...]]:
    # what a text says without its digits, its hints say without theirs
    any_hint = re.compile("|".join(sorted({re.escape(h.translate(NO_DIGITS)) for h in hints()})))
    return any_hint, tuple((s, re.compile(s.text)) for s in shapes())


@dataclass
class Findings:
    """Diagnoses found in one log: the first line that shows each, and how many do."""

    first: dict[str, tuple[int, str]] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    _silent: set[str] = field(default_factory=set)  # texts without digits in which no hint stands

    def look(self, text: str, line: int) -> None:
        """Note every known failure shape in one cleaned line."""
        any_hint, patterns = _compiled()
        # lines that differ in their numbers only are looked at once
        words = text.translate(NO_DIGITS)
        if words in self._silent:
            return
        if any_hint.search(words) is None:
            if len(self._silent) >= SILENT_KEPT:
                self._silent.clear()
            self._silent.add(words)
            return
        for shape, pattern in patterns:
            if shape.hint in text and pattern.search(text) is not None:
                self.first.setdefault(shape.name, (line, text[:400]))
                self.count[shape.name] = self.count.get(shape.name, 0) + 1

    def diagnoses(self) -> list[Diagnosis]:
        """What was found: fatal ones first, each kind by line."""
        found = [
            Diagnosis(
                name=s.name,
                severity=s.severity,
                meaning=s.meaning,
                cause=s.cause,
                next=s.next,
                line=self.first[s.name][0],
                evidence=self.first[s.name][1],
                count=self.count[s.name],
            )
            for s in shapes()
            if s.name in self.first
        ]
        return sorted(found, key=lambda d: (SEVERITIES.index(d.severity), d.line))
