"""The measurement of one pool: a job of Slurm, and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

from busbar.components.engine.hosts import SshLogin, stack_folder, with_login
from busbar.components.engine.local_command import create_hosts_command
from busbar.outputs.contract import read_result
from stacks.slurm.package import job
from stacks.slurm.package.config import Slurm


class SlurmValidation(pulumi.ComponentResource):
    """Makes one Command, which submits the job, follows it and judges its log.

    It measures again when the nodes, versions, image, arguments or `validation.run` change. If only the
    expectation changes, it judges the kept log again, but none from before its creation. `facts`: host -> the
    facts that preflight found. `result`: the PoolResult as JSON values.
    """

    result: pulumi.Output[dict[str, Any]]

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        slurm: Slurm,
        pool: str,
        login: SshLogin,
        facts: pulumi.Output[Mapping[str, dict[str, Any]]],
    ) -> None:
        super().__init__("busbar:slurm:SlurmValidation", name, None, opts)
        folder = f"{stack_folder()}/{pool}"
        stdin: pulumi.Output[str] = facts.apply(
            lambda found: with_login(job.measure_spec(slurm, pool, found, folder), login)
        )
        own = pulumi.ResourceOptions(parent=self)
        collect = create_hosts_command(
            f"{name}-collect", "slurm collect", stdin, own, with_previous_result=True
        )
        self.result = collect.stdout.apply(read_result)
        self.register_outputs({"result": self.result})
