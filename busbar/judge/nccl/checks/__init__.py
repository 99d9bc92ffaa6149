"""The gates, in the order in which trust is built: job, log, tables, ranks, data, set-up, transport, value.

Every gate is run and reported, whatever the others find. A gate that the expectation does not require is
"not-required"; one without evidence is "unknown". Gates on NCCL's messages look at each table with its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from busbar.judge import checks as shared
from busbar.judge.checks import Status
from busbar.judge.nccl.checks.bandwidth import assess, busbw, stability
from busbar.judge.nccl.checks.context import Check, Context
from busbar.judge.nccl.checks.hosts import agreement
from busbar.judge.nccl.checks.ranks import ranks
from busbar.judge.nccl.checks.setup import (
    gdrdma,
    hcas,
    mnnvl,
    nccl_version,
    plugin,
    rails,
    sharp,
    topology_file,
)
from busbar.judge.nccl.checks.tables import collective, completeness, correctness, job, source, warnings
from busbar.judge.nccl.checks.transport import transport

Gate = Callable[[Context], Check | None]  # None: the gate does not apply to what was given

# worst first; a gate that one table needs and another does not is needed
WORST: tuple[Status, ...] = ("fail", "unknown", "pass", "not-required")


def for_each_table(gate: Callable[[Context], Check]) -> Gate:
    """Run GATE on the evidence of each table: the worst result counts, with the name of its table."""

    @wraps(gate)
    def worst(context: Context) -> Check:
        found = [(gate(each), each) for each in context.each]
        check, each = min(found, key=lambda pair: WORST.index(pair[0].status))
        if len(found) == 1 or check.status not in ("fail", "unknown"):
            return check
        (run,) = each.judged
        where = f"table of {next(iter(each.tables))}, line {run.line}"
        return check.model_copy(update={"reason": f"{where}: {check.reason}"})

    return worst


OF_TABLES = (nccl_version, agreement, plugin, topology_file, hcas, transport, gdrdma, rails, sharp, mnnvl)
GATES: tuple[Gate, ...] = (
    job, source, collective, ranks, completeness, correctness, *map(for_each_table, OF_TABLES),
    busbw, stability, warnings,
)  # fmt: skip


def run_all(context: Context) -> list[Check]:
    """Assess each wanted collective once (into CONTEXT), then run every gate in order."""
    for name in context.tables:
        context.bandwidths[name], context.results[name] = assess(context, name)
    return shared.run_all(GATES, context)
