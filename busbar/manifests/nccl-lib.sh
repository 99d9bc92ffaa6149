#!/usr/bin/env bash
# Functions of all scripts that run nccl-tests.
#
# Values: FIRST_LINE, LAST_LINE, COUNT_LINE (busbar/judge), COUNT_SECONDS (for the count at the end: a process that outlives
# mpirun keeps the pipe open), PROGRAM_FOLDERS (where public images keep nccl-tests when they are not on PATH), PROGRAM_FIX,
# NODE_FILE (in a worker's pod: the name of its node).
# shellcheck disable=SC2034 # mpirun is read by the scripts that follow

# start_log: counts all output on its way out, so that a log that was cut is noticed: the kubelet serves one that was rotated twice
# with a hole.
start_log() {
  set -uo pipefail
  counts=
  if type -P mktemp tee wc sleep >/dev/null && counts=$(mktemp); then
    exec 3>&1 4> >(exec wc -lc >"$counts")
    exec > >(exec tee /dev/fd/4) 2>&1 4>&-
  fi
  echo "$FIRST_LINE"
}

# finish CODE: ends the log with the count and the exit code, and the script with it.
finish() {
  if [[ $counts ]]; then
    exec >&3 2>&1
    local lines bytes limit=$((SECONDS + COUNT_SECONDS))
    until [[ -s $counts ]] || ((SECONDS >= limit)); do sleep 0.1; done
    read -r lines bytes <"$counts" && echo "$COUNT_LINE $lines lines, $bytes bytes"
    rm -f "$counts"
  fi
  echo "$LAST_LINE $1"
  exit "$1"
}

# find_program NAME: prints its path.
# shellcheck disable=SC2329 # ranks of Slurm call it
find_program() {
  command -v "$1" && return
  local folder
  for folder in "${PROGRAM_FOLDERS[@]}"; do
    [[ -x $folder/$1 ]] && echo "$folder/$1" && return
  done
  echo "# busbar: no program $1 on PATH or in ${PROGRAM_FOLDERS[*]}. Fix: $PROGRAM_FIX" >&2
  return 127
}

# describe_host: the first rank of each host prints what its processes may open, and which libraries of the driver are empty.
# shellcheck disable=SC2329 # ranks call it
describe_host() {
  [[ ${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-0}} == 0 ]] || return 0
  local host=${SLURMD_NODENAME:-${HOSTNAME%%.*}} file
  [[ ! -s $NODE_FILE ]] || host=$(<"$NODE_FILE")
  echo "# busbar: open files on $host: soft $(ulimit -Sn), hard $(ulimit -Hn)"
  for file in /usr/lib{,64,/*-linux-gnu}/lib{cuda,nvidia-ml}.so.1; do
    [[ ! -e $file || -s $file ]] || echo "# busbar: driver library on $host has 0 bytes: $file"
  done
}

# find_mpirun MESSAGE OPTION...: sets `mpirun`, with these options and the one by which each line names its rank; ends the script
# with the message where there is none. By its absolute path: Open MPI then finds its own files there on the workers too, where
# ssh sets no PATH.
find_mpirun() {
  local path
  path=$(command -v mpirun) || {
    echo "# busbar: $1"
    finish 127
  }
  mpirun=("$path" "${@:2}" --tag-output)
  [[ $("$path" --version 2>&1) != *'(Open MPI) 5.'* ]] || mpirun=("$path" "${@:2}" --output tag)
}
