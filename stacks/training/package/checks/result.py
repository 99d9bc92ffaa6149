"""The result of a check on a training run."""

from __future__ import annotations

from busbar.judge.checks import Check as Check
from busbar.judge.checks import by_status

passed, failed, unknown, not_required = by_status(Check.of)
