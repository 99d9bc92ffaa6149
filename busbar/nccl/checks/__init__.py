"""The gates, in the order in which trust is built: job, log, tables, ranks, data, set-up, transport, value.

Every gate is run and reported, whatever the others say. A gate that the expectation does not ask for is
"not-required"; one that lacks its evidence is "unknown", never "pass".

A new gate: its codes in codes.py, a function Context -> Check, its place in GATES, a test, and a row in
docs/nccl.md.
"""

from __future__ import annotations

from collections.abc import Callable

from busbar.nccl.checks.bandwidth import assess, busbw, stability
from busbar.nccl.checks.completeness import completeness
from busbar.nccl.checks.context import Context
from busbar.nccl.checks.correctness import correctness
from busbar.nccl.checks.fabric import gdrdma, mnnvl, rails, sharp
from busbar.nccl.checks.ranks import ranks
from busbar.nccl.checks.result import Check
from busbar.nccl.checks.setup import hcas, nccl_version, plugin, topology_file
from busbar.nccl.checks.source import collective, job, source
from busbar.nccl.checks.transport import transport
from busbar.nccl.checks.warnings import warnings

Gate = Callable[[Context], Check | None]  # None: the gate does not apply to what was given

GATES: tuple[Gate, ...] = (
    job, source, collective, ranks, completeness, correctness, nccl_version, plugin, topology_file, hcas,
    transport, gdrdma, rails, sharp, mnnvl, busbw, stability, warnings,
)  # fmt: skip


def run_all(context: Context) -> list[Check]:
    """Assess each wanted collective once (into CONTEXT), then run every gate in order."""
    context.findings = {name: assess(context, name) for name in context.tables}
    return [check for gate in GATES if (check := gate(context)) is not None]
