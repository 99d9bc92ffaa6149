#!/usr/bin/env bash
# The launcher of an MPIJob: one mpirun per collective, one after the other. A collective that fails does not stop the next one;
# the exit code is that of the last one that failed. It follows nccl-lib.sh.
#
# Values: HOSTFILE, NAMES_SECONDS, COLLECTIVES (each with arguments for mpirun of its own), MPI_ARGS, RANKS, ARGUMENTS (of
# nccl-tests), MEASURE_SECONDS (for all collectives).
# shellcheck disable=SC2154 # mpirun is set by find_mpirun

# await_names: a worker's name is published when its pod is Ready, and may take a moment to reach every DNS cache; ssh does not
# retry a name.
await_names() {
  command -v getent >/dev/null || return
  local name limit=$((SECONDS + NAMES_SECONDS))
  while read -r name _; do
    until getent hosts "$name" >/dev/null; do
      if ((SECONDS >= limit)); then
        echo "# busbar: $name does not resolve after $NAMES_SECONDS s"
        return
      fi
      sleep 1
    done
  done <"$HOSTFILE"
}

# measure COLLECTIVE ARGUMENTS...
measure() {
  local program code=0
  echo "# busbar: measuring $1"
  program=$(find_program "$1_perf") &&
    timeout --kill-after=5 $((MEASURE_SECONDS > SECONDS ? MEASURE_SECONDS - SECONDS : 1)) \
      "${mpi[@]}" "${@:2}" "$program" "${ARGUMENTS[@]}" || code=$?
  ((code != 124)) || echo "# busbar: $1 timed out: the limit for all collectives is $MEASURE_SECONDS s"
  echo "# busbar: $1 ended with exit code $code"
  ((code == 0)) || worst=$code
}

start_log
await_names
find_mpirun "no program mpirun on PATH. Fix: set validation.image to one with Open MPI" --allow-run-as-root
mpi=("${mpirun[@]}" -np "$RANKS" --hostfile "$HOSTFILE" "${MPI_ARGS[@]}")
[[ -z ${LD_LIBRARY_PATH:-} ]] || mpi+=(-x LD_LIBRARY_PATH)
worst=0
for collective in "${COLLECTIVES[@]}"; do
  # shellcheck disable=SC2086 # words
  measure $collective
done
finish "$worst"
