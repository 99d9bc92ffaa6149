"""Another key for Secrets in etcd: three stages, in each all servers one at a time."""

from __future__ import annotations

import pulumi
from pulumi_command import remote

from busbar.hosts import k3s
from busbar.hosts.inventory import Inventory
from components.engine.host_command import HostCommandArgs, create_host_command
from components.engine.ssh import SshLogin

STAGES = ("prepare", "rotate", "reencrypt")
# All Secrets are written anew, five per second, and the server restarts.
STAGE_SECONDS = 4500


def rotate_encryption_key(
    name: str, inventory: Inventory, login: SshLogin, opts: pulumi.ResourceOptions
) -> list[remote.Command]:
    """Three Commands per server (host/k3s-key.sh), each after the one before.

    Server 1 does a stage, and every server restarts with its result before the next stage begins: thus all of
    them can read all Secrets at any time. The Commands stay, and run again when the number is raised.
    """
    steps: list[remote.Command] = []
    leader = inventory.servers[0].name
    for stage in STAGES:
        for host in inventory.servers:
            step = HostCommandArgs(
                login=login,
                host=host,
                script="k3s-key",
                timeout_seconds=STAGE_SECONDS,
                values={
                    "NODE_NAME": host.name,
                    "LEADER": leader,
                    "STAGE": stage,
                    **k3s.rotation_values(inventory.cluster.k3s),
                },
            )
            ordered = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=steps[-1:]))
            steps.append(create_host_command(f"{name}-{stage}-{host.name}", step, ordered))
    return steps
