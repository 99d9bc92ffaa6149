"""The sbatch script of one stage of a diagnosis: groups of nodes as steps of one job."""

from __future__ import annotations

from busbar.judge.nccl.expected.profiles import Profile
from busbar.manifests import groups, sbatch
from busbar.manifests.nccljob import Stage
from busbar.manifests.ncclrun import NcclRun


def script(job: NcclRun, stage: Stage, profile: Profile | None, image: str | None = None) -> str:
    """The whole script, as `sbatch.script`. It ends with 0 whatever the groups gave."""
    values = {**groups.values(job, stage), "STAGE_GROUPS": stage.groups}
    return sbatch.with_files(job, profile, image, values, "nccl-groups-slurm", "nccl-groups")
