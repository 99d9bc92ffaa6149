"""The stack outputs: the contract between a busbar stack and the programs that use its cluster."""

from busbar.outputs.build import CLUSTER_GATE, FOLLOW_UP, GATE_FAILED, build_measured, build_outputs
from busbar.outputs.contract import (
    CONTRACT_VERSION,
    NAMES,
    ClusterOutputs,
    ContractError,
    Details,
    NfsExport,
    Node,
    PoolLaunch,
    PoolResult,
)

__all__ = [
    "CLUSTER_GATE",
    "CONTRACT_VERSION",
    "FOLLOW_UP",
    "GATE_FAILED",
    "NAMES",
    "ClusterOutputs",
    "ContractError",
    "Details",
    "NfsExport",
    "Node",
    "PoolLaunch",
    "PoolResult",
    "build_measured",
    "build_outputs",
]
