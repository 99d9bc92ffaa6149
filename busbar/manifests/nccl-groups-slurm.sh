#!/usr/bin/env bash
# Runs groups as steps of one job of Slurm. A step has all of its nodes: `srun --exact` would leave it one CPU per rank. It follows
# nccl-sbatch.sh.
#
# Values: STAGE_GROUPS, CONTAINER (options of srun), WORKER_SECONDS (a node that does not answer by then is left out), MPI_ARGS,
#   ARGUMENTS (of nccl-tests).
# shellcheck disable=SC2034,SC2154 # of nccl-sbatch.sh and nccl-groups.sh: folder, and in run_ranks what run_group has

set -- "${STAGE_GROUPS[@]}"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

await_worker() {
  local step=(srun --mpi=none)
  ((${#CONTAINER[@]} == 0)) || step+=("${CONTAINER[@]}")
  timeout "$WORKER_SECONDS" "${step[@]}" --nodelist="$1" --nodes=1 --ntasks=1 --ntasks-per-node=1 true >/dev/null 2>&1 </dev/null &&
    echo "$1" >"$folder/$1.node"
}

find_programs() {
  :
}

run_ranks() {
  if [[ $mpi ]]; then
    run+=("--nodelist=$(IFS=,; echo "${nodes[*]}")" "--nodes=${#nodes[@]}" "--ntasks=$((slots * ${#nodes[@]}))" "--ntasks-per-node=$slots")
  else
    run=("${mpirun[@]}" -np "$((slots * ${#nodes[@]}))" --host "$(printf ",%s:$slots" "${nodes[@]}" | cut -c 2-)" "${MPI_ARGS[@]}")
  fi
  # Slurm sets the devices of a step anew.
  [[ ! $rail ]] || run+=(env "CUDA_VISIBLE_DEVICES=$rail")
  exec timeout --kill-after=5 "$left" "${run[@]}" bash -c "$rank" busbar all_reduce "${ARGUMENTS[@]}"
}
