#!/usr/bin/env bash
# Runs groups on the workers of an MPIJob. Which worker is on which node is decided when the pods start: the workers tell it.
#
# Values: HOSTFILE, NODE_FILE (on a worker: the name of its node), SSH_ARGS (words), LOGIN_SECONDS, WORKER_SECONDS (a worker that
#   does not answer by then is left out), HANGS, MPI_ARGS, ARGUMENTS (of nccl-tests).
# shellcheck disable=SC2153,SC2154 # of nccl-lib.sh: mpirun; of nccl-groups.sh: folder, and in run_ranks what run_group has

start_log
hosts=()
while read -r host _; do hosts+=("$host"); done <"$HOSTFILE"

# await_worker HOST: one that accepts connections and does not answer them HANGS times is not waited for any longer.
await_worker() {
  local node code hangs=0
  while :; do
    code=0
    # ssh takes the first value of an option. By its own limit it would end as where nothing listens.
    # shellcheck disable=SC2086 # words
    node=$(timeout "$LOGIN_SECONDS" ssh -o ConnectTimeout=60 -o ConnectionAttempts=1 $SSH_ARGS "$1" cat "$NODE_FILE" 2>/dev/null) ||
      code=$?
    if [[ $code == 0 && $node ]]; then
      echo "$node" >"$folder/$1.node"
      return
    fi
    ((code != 124)) || ((hangs += 1))
    ((SECONDS < WORKER_SECONDS && hangs < HANGS)) || return 0
    sleep 1
  done
}

find_programs() {
  find_mpirun "no program mpirun on PATH. Fix: set validation.image to one with Open MPI" --allow-run-as-root
  program=$(find_program all_reduce_perf) || finish 127
}

run_ranks() {
  exec timeout --kill-after=5 "$left" "${mpirun[@]}" \
    -np $((slots * ${#nodes[@]})) --hostfile "$file.hosts" "${MPI_ARGS[@]}" \
    ${LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH} "$program" "${ARGUMENTS[@]}"
}
