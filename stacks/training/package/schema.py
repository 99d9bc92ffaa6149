"""The JSON Schema of a stack file of stacks/training, generated from the models."""

from __future__ import annotations

from typing import Any

from busbar.config.schema import project_schema
from stacks.training.package.config import KEY, PROJECT, Training


def stack_schema() -> dict[str, Any]:
    """The schema of `stacks/training/Pulumi.<stack>.yaml`."""
    return project_schema("A stack of stacks/training: Pulumi.<stack>.yaml", PROJECT, KEY, Training)
