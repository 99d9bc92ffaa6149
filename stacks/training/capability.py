"""The entry of training: everything that the core knows of this folder."""

from busbar.capability import Capability, Gate

GATE = Gate(
    version="training_contract_version",
    passed="training_passed",
    reasons="training_reasons",
    title="training run failed",
    raised="proof.run",
    summary="stacks.training.package.outputs",
)
CAPABILITY = Capability(
    name="training",
    help="Configure, read and judge training runs.",
    commands="stacks.training.package.commands",
    config="stacks.training.package.config:CONFIG",
    gate=GATE,
    steps={
        "collect": "stacks.training.package.collect:collect_run",
        "bind-claim": "stacks.training.package.storage:bind",
        "before-removal": "stacks.training.package.trainer:refuse_jobs",
        "before-deletion": "stacks.training.package.storage:refuse_claims",
    },
    ready="stacks.training.package.commands:ready",
    waits=("storage-bind",),
    job_kinds=("TrainJob", "PyTorchJob"),
    judge="stacks.training.package.collect:judge_folder",
)
