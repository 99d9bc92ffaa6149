#!/usr/bin/env bash
# The launcher of an MPIJob: one mpirun per collective, all in one log. It follows nccl-lib.sh.
#
# Values: HOSTFILE, NAMES_SECONDS, MPI_ARGS, RANKS, ARGUMENTS (of nccl-tests).
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

start_log
await_names
find_mpirun "no program mpirun on PATH. Fix: set validation.image to one with Open MPI" --allow-run-as-root
mpi=("${mpirun[@]}" -np "$RANKS" --hostfile "$HOSTFILE" "${MPI_ARGS[@]}")
[[ -z ${LD_LIBRARY_PATH:-} ]] || mpi+=(-x LD_LIBRARY_PATH)

# run_collective SECONDS COLLECTIVE ARGUMENTS...: with arguments for mpirun.
run_collective() {
  local program
  # shellcheck disable=SC2016 # for the shell of the rank
  program=$(find_program "$2_perf") && timeout --kill-after=5 "$1" "${mpi[@]}" "${@:3}" /bin/bash -c \
    "$(declare -p NODE_FILE; declare -f describe_host)"$'\n''describe_host; exec "$@"' busbar "$program" "${ARGUMENTS[@]}"
}
