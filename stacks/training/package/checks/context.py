"""The input of all checks: the log, its unreadable parts, the expectation, and the outcome of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from busbar.judge.checks import JobOutcome
from stacks.training.package.expectation import Expectation
from stacks.training.package.log import Attempt, Checkpoint, Step, Timing, TrainingLog


@dataclass
class Context:
    """One run. `missing`: parts of the log that could not be read, one sentence each."""

    log: TrainingLog
    expectation: Expectation
    outcome: JobOutcome | None = None  # None: only a log was given
    missing: Sequence[str] = field(default_factory=tuple)

    @property
    def last(self) -> Attempt | None:
        """The last attempt, which should have reached the end."""
        return self.log.attempts[-1] if self.log.attempts else None

    @cached_property
    def killed(self) -> Attempt | None:
        """The first attempt, if it ended with the kill of a rank."""
        first = self.log.attempts[0] if self.log.attempts else None
        return first if first is not None and first.kill is not None else None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that the first attempt wrote."""
        return self.killed.checkpoint if self.killed else None

    @property
    def timing(self) -> Timing | None:
        """The times that were measured at the end."""
        return self.last.timing if self.last else None

    @property
    def steps(self) -> list[Step]:
        """All steps in the order of the log; repeated steps occur twice."""
        return [step for attempt in self.log.attempts for step in attempt.steps]
