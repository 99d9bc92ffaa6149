"""The JSON Schema of a stack file of stacks/slurm, generated from the models."""

from __future__ import annotations

from typing import Any

from busbar.config.schema import project_schema
from stacks.slurm.package.config import KEY, NOT_OF_POOLS, NOT_OF_VALIDATION, PROJECT, SECRETS, Slurm


def stack_schema() -> dict[str, Any]:
    """The schema of `stacks/slurm/Pulumi.<stack>.yaml`, without the core's keys that only Kubernetes has."""
    secret = {"type": "object", "required": ["secure"], "description": "Written by Pulumi."}
    made = project_schema(
        f"A stack of {PROJECT}: Pulumi.<stack>.yaml",
        PROJECT,
        KEY,
        Slurm,
        more_keys=dict.fromkeys(SECRETS, secret),
    )
    definitions = made["$defs"]
    for name, keys in {
        "Pool": NOT_OF_POOLS,
        "Validation": NOT_OF_VALIDATION,
        "PoolValidation": NOT_OF_VALIDATION,
    }.items():
        for key in keys:
            definitions[name]["properties"].pop(key, None)
    definitions.pop("Taint", None)
    return made
