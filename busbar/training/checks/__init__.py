"""The checks, in the order in which trust is built. Every check is run and reported, whatever others say.

One that lacks its evidence is "unknown", never "pass". A new check: its codes in codes.py, a function
Context -> Check, its place in CHECKS, a test, and a row in docs/training.md.
"""

from __future__ import annotations

from collections.abc import Callable

from busbar.training.checks.bandwidth import allreduce, busbw
from busbar.training.checks.context import Context
from busbar.training.checks.fabric import fabric
from busbar.training.checks.interfaces import interfaces
from busbar.training.checks.learning import data, gradients, loss
from busbar.training.checks.recovery import checkpoint, recovery
from busbar.training.checks.result import Check
from busbar.training.checks.run import job, log, ranks
from busbar.training.checks.storage import storage

CHECKS: tuple[Callable[[Context], Check | None], ...] = (
    job, log, ranks, fabric, interfaces, data, loss, gradients, storage, checkpoint, recovery, allreduce,
    busbw,
)  # fmt: skip


def run_all(context: Context) -> list[Check]:
    """Run every check in order."""
    return [found for check in CHECKS if (found := check(context)) is not None]
