"""What decides whether an update may succeed, and how its outputs are shown, by project."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Gate:
    """The gate of a project, by the names of its outputs.

    `raised`: the configuration key that, raised by one, measures again. `summary`: the module of the tables.
    """

    version: str
    passed: str
    reasons: str
    title: str
    raised: str
    summary: str

    def tables(self, outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
        """The outputs for a terminal; `folder` is where verdicts were kept. Raises ValueError."""
        made: RenderableType = importlib.import_module(self.summary).summary(outputs, folder=folder)
        return made


CLUSTER = Gate(
    "contract_version", "nccl_passed", "nccl_reasons", "NCCL validation failed", "validation.run",
    "busbar.outputs.summary",
)  # fmt: skip
TRAINING = Gate(
    "training_contract_version", "training_passed", "training_reasons", "training run failed", "proof.run",
    "stacks.training.package.summary",
)  # fmt: skip


def gate_of(outputs: Mapping[str, Any]) -> Gate | None:
    """The gate of the project that these outputs are of; None for a project that busbar does not know."""
    return next((gate for gate in (CLUSTER, TRAINING) if gate.version in outputs), None)
