"""The gates, in the order in which trust is built: source, tables, ranks, data, transport, value.

Every gate is run and reported, whatever the others say. A gate that the expectation does not ask for is
"not-required"; one that lacks its evidence is "unknown", never "pass".
"""

from __future__ import annotations

from busbar.nccl.gates.context import Context
from busbar.nccl.gates.log import collective, completeness, correctness, source
from busbar.nccl.gates.reference import hcas, nccl_version, plugin, topology_file
from busbar.nccl.gates.size import ranks
from busbar.nccl.gates.value import busbw, stability, warnings
from busbar.nccl.gates.wire import gdrdma, mnnvl, rails, sharp, transport
from busbar.nccl.verdict import Check

ORDER = (
    source, collective, ranks, completeness, correctness, nccl_version, plugin, topology_file, hcas,
    transport, gdrdma, rails, sharp, mnnvl, busbw, stability, warnings,
)  # fmt: skip


def run_all(context: Context) -> list[Check]:
    """Run every gate in order."""
    return [gate(context) for gate in ORDER]
