"""From a measured fabric to a proven training run: only wiring, the parts are in components/training/."""

import pulumi
from pulumi import ResourceOptions

from components.release import create_privileged_namespace
from components.training.stack import TrainingStack


async def main() -> None:
    stack = await TrainingStack.load()
    provider = stack.create_provider("cluster")
    # Its pods lock memory for RDMA.
    create_privileged_namespace("namespace", stack.training.namespace, ResourceOptions(provider=provider))
    pulumi.export("cluster_name", stack.cluster.cluster_name)
    pulumi.export("pools", sorted(stack.targets))


pulumi.run(main)
