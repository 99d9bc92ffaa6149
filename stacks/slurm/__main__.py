"""The program of stacks/slurm: makes a measured Slurm cluster of machines reachable over SSH. It has wiring
only; see package/components/."""

from pathlib import Path

import pulumi
from pulumi import ResourceOptions

from busbar.components.engine.stack import (
    checked,
    end_quietly_when_interrupted,
    export_all,
    fail_unless_made,
    fail_unless_passed,
    leave_out_debug_messages,
    read_stack,
)
from busbar.config.checks import measurement_warnings
from stacks.slurm.package import config, outputs
from stacks.slurm.package.components.hosts import SlurmHosts
from stacks.slurm.package.components.validation import SlurmValidation

FOLDER = Path(__file__).resolve().parent


async def main() -> None:
    data, secrets = read_stack(config.PROJECT, config.KEY, config.SECRETS)
    slurm, login = checked(data, secrets, FOLDER, config.load, measurement_warnings, config.ROLES)
    hosts = SlurmHosts("slurm", slurm=slurm, login=login)
    measured: dict[str, SlurmValidation] = {}
    for pool in slurm.pools if slurm.validation.enabled else ():
        # One pool at a time: together they would share switches, and so the bandwidth.
        opts = ResourceOptions(depends_on=[*hosts.steps, *measured.values()])
        measured[pool] = SlurmValidation(
            f"nccl-{pool}", opts, slurm=slurm, pool=pool, login=login, facts=hosts.facts
        )
    # Named, because Output.all() of nothing is an empty list.
    built = pulumi.Output.all(
        facts=hosts.facts, results={pool: each.result for pool, each in measured.items()}
    ).apply(lambda found: outputs.build_outputs(slurm, found["facts"], found["results"]))
    export_all({name: built[name] for name in outputs.NAMES}, hosts.steps)
    await fail_unless_passed(built, enforce=slurm.validation.is_gate, gate=outputs.gate)
    await fail_unless_made(hosts.steps)


leave_out_debug_messages()
end_quietly_when_interrupted()
pulumi.run(main)
