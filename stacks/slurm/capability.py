"""The entry of Slurm: everything that the core knows of this folder."""

from busbar.capability import Capability, Gate

CAPABILITY = Capability(
    name="slurm",
    help="Configure and measure Slurm on plain hosts.",
    commands="stacks.slurm.package.commands",
    config="stacks.slurm.package.config:CONFIG",
    gate=Gate(
        version="slurm_contract_version",
        passed="slurm_nccl_passed",
        reasons="slurm_nccl_reasons",
        title="NCCL validation failed",
        raised="validation.run",
        summary="stacks.slurm.package.outputs",
    ),
    operations="stacks.slurm.package.operations",
    jobs="stacks.slurm.package.operations:running_jobs",
    host_roles={"controller": "controller", "login": "login[]", "worker": "compute[]"},
)
