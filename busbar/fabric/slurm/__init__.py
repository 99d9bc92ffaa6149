"""The NCCL measurement by a job of Slurm: submit it, follow its log, judge it.

The caller says how Slurm is reached (`Reach`; `over_ssh` for hosts) and what is measured (`MeasureSpec`).
`measure` gives the verdict, `keep` adds it to the history. `SlurmJob` is the job alone.
"""

from busbar.fabric.slurm.job import JobSpec, SlurmJob
from busbar.fabric.slurm.measure import MeasureSpec, keep, measure
from busbar.fabric.slurm.reach import SCRIPT, SCRIPT_SECONDS, OverSsh, Reach, over_ssh
from busbar.fabric.slurm.status import Status, why_unusable

__all__ = [
    "SCRIPT",
    "SCRIPT_SECONDS",
    "JobSpec",
    "MeasureSpec",
    "OverSsh",
    "Reach",
    "SlurmJob",
    "Status",
    "keep",
    "measure",
    "over_ssh",
    "why_unusable",
]
