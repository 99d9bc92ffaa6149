"""The gate of each project: it decides whether an update may succeed, and shows the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from busbar.capability import Gate, capabilities
from busbar.outputs import CLUSTER


def gate_of(outputs: Mapping[str, Any]) -> Gate | None:
    """The gate of the project to which the outputs belong; None for a project that busbar does not know."""
    gates = (CLUSTER, *(each.gate for each in capabilities() if each.gate))
    return next((gate for gate in gates if gate.version in outputs), None)
