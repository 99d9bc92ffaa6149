"""The input of a capability's program: its configuration, and the outputs of the cluster's stack."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from busbar.components.engine.stack_config import invalid, read_stack
from busbar.config import ConfigError
from busbar.config.project import Config, ProjectConfig
from busbar.names import CLUSTER_ID, STATE_BEFORE_1_0
from busbar.outputs import FOLLOW_UP, ClusterOutputs, ContractError


def load_config(project: ProjectConfig[Config]) -> Config:
    """The configuration of the selected stack.

    Raises pulumi.RunError with every finding, before any resource is registered.
    """
    data, _ = read_stack(project.project, project.key, project.secrets)
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


async def refuse_other_cluster(name: str, identifier: str) -> None:
    """Record that this stack is for the cluster `name`, before anything on it is registered.

    The update or preview fails if the state has another identifier, or is from before 1.0. Otherwise the
    engine would treat resources of the other cluster as those of this one.
    """

    def before_update(args: pulumi.ResourceHookArgs) -> None:
        recorded = (args.old_inputs or {}).get("input")
        if not isinstance(recorded, Mapping):
            raise ValueError(STATE_BEFORE_1_0)
        raise ValueError(
            f"cluster {name} is another one than before: its id is {identifier}, expected {recorded['id']}. "
            "Nothing was changed. Fix: configure the former cluster again; or, to move, first run "
            "`busbar destroy` on this stack, which removes what it has on the former one. If that one is "
            f"gone, run `pulumi stack rm --force --preserve-config {pulumi.get_stack()}`, then retry"
        )

    hook = pulumi.ResourceHook(CLUSTER_ID, before_update, pulumi.ResourceHookOptions(on_dry_run=True))
    opts = pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(before_update=[hook]))
    if not await pulumi.Stash(CLUSTER_ID, input={"id": identifier}, opts=opts).output.is_known():
        raise pulumi.RunError(f"nothing is updated on cluster {name} {FOLLOW_UP}")


async def keep_to_cluster(cluster: ClusterOutputs) -> None:
    """Run `refuse_other_cluster` for the outputs of a stack."""
    await refuse_other_cluster(cluster.cluster_name, cluster.identifier)
