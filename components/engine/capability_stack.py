"""What the program of a capability starts with: its configuration, and the outputs of the cluster's stack."""

from __future__ import annotations

import pulumi

from busbar.components.engine.stack_config import invalid, read_stack
from busbar.config import ConfigError
from busbar.config.project import Config, ProjectConfig
from busbar.outputs import ClusterOutputs, ContractError


def load_config(project: ProjectConfig[Config]) -> Config:
    """The configuration of the selected stack.

    Raises pulumi.RunError with every finding, before any resource is registered.
    """
    data, _ = read_stack(project.project, project.key, ())
    try:
        return project.load(data)
    except ConfigError as error:
        raise invalid(error) from None


async def load_cluster(stack: str) -> ClusterOutputs:
    """The outputs of the cluster's stack, passed or not. Raises pulumi.RunError if they cannot be read."""
    try:
        return await ClusterOutputs.from_stack(pulumi.StackReference(stack))
    except ContractError as error:
        raise pulumi.RunError(f"{stack}: {error}") from None
