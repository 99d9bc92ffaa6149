"""The JSON Schema of a stack file of stacks/slurm, generated from the models."""

from __future__ import annotations

from typing import Any

from busbar.config.schema import project_schema
from stacks.slurm.package.config import KEY, PROJECT, SECRETS, Slurm


def stack_schema() -> dict[str, Any]:
    """The schema of `stacks/slurm/Pulumi.<stack>.yaml`."""
    secret = {"type": "object", "required": ["secure"], "description": "Written by Pulumi."}
    title = f"A stack of {PROJECT}: Pulumi.<stack>.yaml"
    return project_schema(title, PROJECT, KEY, Slurm, more_keys=dict.fromkeys(SECRETS, secret))
