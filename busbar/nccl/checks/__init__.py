"""The gates, in the order in which trust is built: source, tables, ranks, data, transport, value.

Every gate is run and reported, whatever the others say. A gate that the expectation does not ask for is
"not-required"; one that lacks its evidence is "unknown", never "pass".
"""

from __future__ import annotations

from busbar.nccl.checks.context import Context
from busbar.nccl.checks.log import collective, completeness, correctness, source
from busbar.nccl.checks.reference import hcas, nccl_version, plugin, topology_file
from busbar.nccl.checks.size import ranks
from busbar.nccl.checks.value import busbw, stability, warnings
from busbar.nccl.checks.wire import gdrdma, mnnvl, rails, sharp, transport
from busbar.nccl.verdict import Check

ORDER = (
    source, collective, ranks, completeness, correctness, nccl_version, plugin, topology_file, hcas,
    transport, gdrdma, rails, sharp, mnnvl, busbw, stability, warnings,
)  # fmt: skip


def run_all(context: Context) -> list[Check]:
    """Run every gate in order."""
    return [gate(context) for gate in ORDER]
