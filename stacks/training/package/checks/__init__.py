"""The checks, in the order in which trust is built. Each is run and reported, whatever the others find.

A check that lacks its evidence is "unknown", never "pass". A new check needs its codes in codes.py, a
function Context -> Check, its place in CHECKS, runs that it fails and that leave it unknown
(tests/unit/test_every_check.py), and a row in docs.md.
"""

from __future__ import annotations

from collections.abc import Callable

from busbar.judge import checks
from stacks.training.package.checks.bandwidth import allreduce, busbw
from stacks.training.package.checks.context import Context
from stacks.training.package.checks.fabric import fabric
from stacks.training.package.checks.interfaces import interfaces
from stacks.training.package.checks.learning import data, gradients, loss
from stacks.training.package.checks.recovery import checkpoint, recovery
from stacks.training.package.checks.result import Check
from stacks.training.package.checks.run import job, log, ranks
from stacks.training.package.checks.storage import storage

CHECKS: tuple[Callable[[Context], Check | None], ...] = (
    job, log, ranks, fabric, interfaces, data, loss, gradients, storage, checkpoint, recovery, allreduce,
    busbw,
)  # fmt: skip


def run_all(context: Context) -> list[Check]:
    """Run every check in order."""
    return checks.run_all(CHECKS, context)
