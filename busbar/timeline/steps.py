"""The steps of one update, kept as a file in the stack's folder, and their critical path."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "timeline.json"
FORMAT = 1

# The end of a step is reported a moment after it: the step that waited for it may seem to begin earlier.
_SLACK_SECONDS = 0.2


@dataclass(frozen=True)
class Step:
    """One step on one resource; `began` and `ended` are seconds since the update began."""

    name: str
    urn: str
    verb: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long the step took."""
        return self.ended - self.began


@dataclass(frozen=True)
class Wait:
    """A step of the critical path, and the seconds between the end of the one before it and its beginning."""

    step: Step
    idle: float


@dataclass(frozen=True)
class Timeline:
    """One update: its stack, when it began (ISO 8601, UTC), how long it took, its steps.

    `ahead` are the URNs that a resource waits for: its dependencies, its parent and its provider.
    """

    stack: str
    began: str
    seconds: float
    steps: tuple[Step, ...]
    ahead: Mapping[str, Sequence[str]]

    def critical_path(self) -> list[Wait]:
        """The step that ended last, before it the one that it waited for longest, and so on; in order."""
        if not self.steps:
            return []
        path = [max(self.steps, key=lambda step: step.ended)]
        while earlier := self._awaited(path[0]):
            path.insert(0, max(earlier, key=lambda step: step.ended))
        ends = [0.0, *(step.ended for step in path)]
        return [Wait(step, max(0.0, step.began - end)) for step, end in zip(path, ends, strict=False)]

    def _awaited(self, step: Step) -> list[Step]:
        """The nearest steps that had to end before this one; resources without a step are passed through."""
        by_urn: dict[str, list[Step]] = {}
        for each in self.steps:
            by_urn.setdefault(each.urn, []).append(each)
        found: list[Step] = []
        seen, open_ = {step.urn}, list(self.ahead.get(step.urn, ()))
        while open_:
            urn = open_.pop()
            if urn in seen:
                continue
            seen.add(urn)
            done = [each for each in by_urn.get(urn, []) if each.ended <= step.began + _SLACK_SECONDS]
            found += done
            if not done:
                open_ += self.ahead.get(urn, ())
        return found

    def write(self, folder: Path) -> Path:
        """Keep it in the stack's folder, in place of the one before."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"format": FORMAT, **asdict(self)}) + "\n", encoding="utf-8")
        os.replace(new, path)
        return path

    @staticmethod
    def read(folder: Path) -> Timeline | None:
        """The one that was kept, or None. Raises ValueError if the file is not in this version's format."""
        path = folder / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if (found := content.pop("format")) != FORMAT:
                raise ValueError(f"format is {found}, expected {FORMAT}")
            steps = tuple(Step(**step) for step in content.pop("steps"))
            return Timeline(steps=steps, **content)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is not a timeline: {error}. Fix: remove it; the next update writes it"
            ) from None
