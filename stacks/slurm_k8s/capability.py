"""The entry of slurm_k8s: everything that the core knows of this folder."""

from busbar.capability import Capability, Gate

GATE = Gate(
    version="slurm_k8s_contract_version",
    passed="slurm_ready",
    reasons="slurm_reasons",
    title="Slurm is not ready",
    raised="probe.run",
    summary="stacks.slurm_k8s.package.outputs",
)
CAPABILITY = Capability(
    name="slurm_k8s",
    help="Slurm on a measured cluster.",
    commands="stacks.slurm_k8s.package.commands",
    config="stacks.slurm_k8s.package.config:CONFIG",
    gate=GATE,
    steps={
        "survey": "stacks.slurm_k8s.package.survey:survey",
        "webhook": "stacks.slurm_k8s.package.steps:await_webhook",
        "before-change": "stacks.slurm_k8s.package.steps:before_change",
        "roll": "stacks.slurm_k8s.package.roll:roll",
        "ready": "stacks.slurm_k8s.package.ready:ready",
        "measure": "stacks.slurm_k8s.package.operations:measure_update",
        "before-removal": "stacks.slurm_k8s.package.steps:refuse_jobs",
        "after-removal": "stacks.slurm_k8s.package.steps:await_removal",
    },
    drains="stacks.slurm_k8s.package.drain:hook",
    nodes="stacks.slurm_k8s.package.drain:node_states",
    ready="stacks.slurm_k8s.package.ready:works",
    waits=("slurm-roll", "slurm-ready"),
    jobs="stacks.slurm_k8s.package.steps:running_jobs",
    measure="stacks.slurm_k8s.package.operations:measure",
)
