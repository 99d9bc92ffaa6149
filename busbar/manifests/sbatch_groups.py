"""The sbatch script of one stage of a diagnosis: the groups of `busbar.manifests.groups` as steps of one job.

A step has all of its nodes: `srun --exact` would leave it one CPU per rank.
"""

from __future__ import annotations

import shlex

from busbar.judge.nccl.expected.profiles import Profile
from busbar.manifests import groups, sbatch
from busbar.manifests.nccljob import Stage
from busbar.manifests.ncclrun import NcclRun

_NODES = """\
await_worker() {{
  timeout {worker_seconds} srun --mpi=none{options} --nodelist="$1" --nodes=1 --ntasks=1 \\
    --ntasks-per-node=1 true >/dev/null 2>&1 </dev/null && echo "$1" >"$folder/$1.node"
}}
set -- {names}
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
"""

_STEP = """\
      if [[ $mpi ]]; then
        run+=("--nodelist=$(IFS=,; echo "${{nodes[*]}}")" "--nodes=${{#nodes[@]}}" \\
          "--ntasks=$((slots * ${{#nodes[@]}}))" "--ntasks-per-node=$slots")
      else
        run=("$mpirun" "${{tag[@]}}" -np "$((slots * ${{#nodes[@]}}))" \\
          --host "$(printf ",%s:$slots" "${{nodes[@]}}" | cut -c 2-)" {mpi_args})
      fi
      # Slurm sets the devices of a step anew.
      [[ ! $rail ]] || run+=(env "CUDA_VISIBLE_DEVICES=$rail")
      exec timeout --kill-after=5 "$left" "${{run[@]}}" bash -c "$rank" busbar all_reduce {arguments}
"""


def script(job: NcclRun, stage: Stage, profile: Profile | None, image: str | None = None) -> str:
    """The whole script, as `sbatch.script`. It ends with 0 whatever the groups gave."""
    parts = (groups.IN_PARALLEL, _NODES, groups.ANSWERING, groups.RUN_GROUP, _STEP, groups.ROUNDS)
    names = shlex.join(stage.groups)
    return sbatch.with_body(job, profile, image, "".join(parts), **groups.values(stage), names=names)
