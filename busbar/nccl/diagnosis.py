"""Known failure shapes: which text means what, why, and what to run next (data: diagnosis.yaml)."""

from __future__ import annotations

from dataclasses import dataclass, field

from busbar.nccl.verdict import Diagnosis


@dataclass
class Findings:
    """Diagnoses found in one log, by name, with the first line that shows each."""

    found: dict[str, tuple[int, str]] = field(default_factory=dict)

    def diagnoses(self) -> list[Diagnosis]:
        """What was found, fatal ones first, then by line."""
        return []

    def look(self, text: str, line: int) -> None:
        """Note every known failure shape in one cleaned line."""
