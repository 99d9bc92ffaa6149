"""The JSON Schema of a stack file of stacks/watch, generated from the models."""

from __future__ import annotations

from typing import Any

from busbar.config.schema import project_schema
from stacks.watch.package.config import KEY, PROJECT, Watch


def stack_schema() -> dict[str, Any]:
    """The schema of `stacks/watch/Pulumi.<stack>.yaml`."""
    return project_schema("A stack of stacks/watch: Pulumi.<stack>.yaml", PROJECT, KEY, Watch)
