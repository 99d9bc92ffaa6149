"""Functions of the fabric that the bring-up calls by name, because it does not import the fabric."""

from __future__ import annotations

import pkgutil
from typing import Any

HOOKS = {
    # After a verdict was made: (folder of the pool, the verdict in short with its record, progress).
    "verdict_made": "busbar.fabric.measure.history:append",
    # After an update that the gate has failed: (path of the stack file, say).
    "gate_failed": "busbar.fabric.commands.diagnose:after_failed_gate",
}


def call(hook: str, *arguments: Any) -> None:
    """Call the function of HOOK with these arguments. Raises KeyError for an unknown hook."""
    pkgutil.resolve_name(HOOKS[hook])(*arguments)
