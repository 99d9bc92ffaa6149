#!/usr/bin/env bash
# Prepares the ranks of a job of Slurm: `run` starts them, `rank` is the script of each. It follows nccl-lib.sh.
#
# Values: CONTAINER (options of srun; empty for nccl-tests on the nodes), SLOTS (ranks per node), MPI_ARGS,
#   ARGUMENTS (of nccl-tests).
# shellcheck disable=SC2154 # mpirun is set by find_mpirun

if [[ -z ${SLURM_JOB_ID:-} ]]; then
  echo "error: this script runs in a Slurm job. Fix: sbatch --partition=NAME $0" >&2
  exit 64
fi
start_log

# interface_to NODE: the interface that leads to another node.
interface_to() {
  local address
  address=$(scontrol --oneliner show node "$1" 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p')
  address=$(getent ahosts "${address:-$1}" | awk '{ print $1; exit }')
  [[ $address ]] && ip -o route get "$address" 2>/dev/null | sed -n 's/.* dev \([^ ]*\) .*/\1/p'
}

# Ranks find each other over that interface, where NCCL_SOCKET_IFNAME is not set. The one of the default route may belong to a
# management network: it is the second choice.
if [[ -z ${NCCL_SOCKET_IFNAME:-} ]]; then
  interface=
  for node in $(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" 2>/dev/null); do
    [[ $node != "${SLURMD_NODENAME:-}" ]] || continue
    interface=$(interface_to "$node")
    break
  done
  [[ $interface && $interface != lo ]] || interface=$(ip -o route show default 2>/dev/null |
    sed -n '1s/.* dev \([^ ]*\) .*/\1/p')
  [[ ! $interface ]] || export NCCL_SOCKET_IFNAME=$interface OMPI_MCA_btl_tcp_if_include=$interface
fi

# Slurm also lists pmix where the library that it loads, libpmix, is missing.
types=" $(srun --mpi=list 2>&1 | tr -s '[:space:],:' ' ') "
mpi=
for type in pmix pmi2; do
  [[ ! $mpi && $types == *" $type "* ]] || continue
  timeout 60 srun --mpi=$type --nodes=1 --ntasks=1 true >/dev/null 2>&1 && mpi=$type
done
if ((${#CONTAINER[@]})); then
  if [[ $(srun --help 2>&1) != *--container-image* ]]; then
    echo "# busbar: srun has no --container-image: pyxis is not installed here. Fix: install enroot and pyxis on all nodes," \
      "or print the script without --image for nccl-tests on the nodes"
    finish 64
  fi
  if [[ ! $mpi ]]; then
    echo "# busbar: no working srun --mpi=pmix or pmi2 for an image. Fix: install libpmix for Slurm"
    finish 64
  fi
fi
if [[ $mpi ]]; then
  run=(srun "--mpi=$mpi" --kill-on-bad-exit=1 --cpu-bind=none)
  ((${#CONTAINER[@]} == 0)) || run+=("${CONTAINER[@]}")
else
  find_mpirun "no working srun --mpi=pmix or pmi2, and no mpirun. Fix: install libpmix for Slurm"
  run=("${mpirun[@]}" -np "$((SLURM_JOB_NUM_NODES * SLOTS))" "${MPI_ARGS[@]}")
fi

# run_rank COLLECTIVE ARGUMENTS...: a rank looks for the program where it runs: on the nodes, or in the image.
# shellcheck disable=SC2329
run_rank() {
  local program
  describe_host
  program=$(find_program "$1_perf") && exec "$program" "${@:2}"
}
# shellcheck disable=SC2016 # for the shell of the rank
rank="$(declare -p PROGRAM_FOLDERS PROGRAM_FIX NODE_FILE; declare -f find_program describe_host run_rank)"$'\n''run_rank "$@"'

# run_collective SECONDS COLLECTIVE ARGUMENTS...: with arguments for env.
run_collective() {
  timeout --kill-after=5 "$1" env "${@:3}" "${run[@]}" bash -c "$rank" busbar "$2" "${ARGUMENTS[@]}"
}
