"""The result of a check on a training run."""

from __future__ import annotations

from busbar.judge import checks
from busbar.judge.checks import by_status
from stacks.training.package.checks.codes import Code


class Check(checks.Check[Code]):
    """`name`: the check, such as ranks."""


passed, failed, unknown, not_required = by_status(Check.of)
