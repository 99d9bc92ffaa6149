#!/usr/bin/env bash
# One stage of a diagnosis: many runs on few nodes each, in rounds. Each group runs under its own time limit, and its output is
# one block between two marker lines. It follows nccl-groups-pods.sh or nccl-groups-slurm.sh, which have `hosts`, `await_worker`,
# `find_programs` and `run_ranks`, and ends with 0 whatever the groups gave.
#
# Arguments: the groups. A1/NODE/NODE: round, nodes; C0/rail2/NODE/NODE: one HCA and its GPU.
# Values: LOGINS (workers that are waited for at the same time), PARALLEL (groups that are measured at the same time),
#   GROUP_SECONDS, MEASURE_SECONDS (for all groups), SLOTS (ranks per node), HCAS (by rail), PLACED, ANSWERS, ENDED, TIMED_OUT,
#   NOT_RUN (of the lines that busbar/manifests/groups.py names).
# shellcheck disable=SC2153,SC2154 # SLOTS is a value; hosts

folder=$(mktemp -d) || finish 1

# in_parallel COUNT FUNCTION WORD...: calls the function with each of the words, COUNT at the same time.
in_parallel() {
  local count=$1 call=$2 at pids=()
  shift 2
  for ((at = 1; at <= $# && at <= count; at++)); do
    (for (( ; at <= $#; at += count)); do "$call" "${!at}"; done) &
    pids+=($!)
  done
  (($# == 0)) || wait "${pids[@]}"
}

# run_group GROUP: its output is FILE.out, its end FILE.end.
run_group() {
  local file=$folder/${1//\//+} nodes node host rail="" slots=$SLOTS left code=0 began=$SECONDS
  IFS=/ read -ra nodes <<<"$1"
  if [[ ${nodes[0]} == C* ]]; then
    rail=${nodes[1]#rail} slots=1
    nodes=("${nodes[@]:1}")
  fi
  nodes=("${nodes[@]:1}")
  for node in "${nodes[@]}"; do
    host=${host_of[$node]:-}
    if [[ ! $host ]]; then
      echo "$NOT_RUN no worker on $node" >"$file.end"
      return
    fi
    echo "$host slots=$slots" >>"$file.hosts"
  done
  left=$((MEASURE_SECONDS - SECONDS < GROUP_SECONDS ? MEASURE_SECONDS - SECONDS : GROUP_SECONDS))
  if ((left > 0)); then
    (
      if [[ $rail ]]; then
        export CUDA_VISIBLE_DEVICES=$rail NCCL_IB_HCA="=${HCAS[rail]}"
      elif ((${#nodes[@]} == 1)); then
        # The names of the HCAs.
        export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET
      fi
      run_ranks
    ) >"$file.out" 2>&1 </dev/null || code=$?
  fi
  # 137: it had to be killed.
  if ((left > 0 && (code == 124 || code == 137) && SECONDS - began >= left)); then
    if ((left < GROUP_SECONDS)); then left=0; else echo "$TIMED_OUT $left s" >"$file.end"; fi
  elif ((left > 0)); then
    echo "$ENDED $code after $((SECONDS - began)) s" >"$file.end"
  fi
  ((left > 0)) || echo "$NOT_RUN the time for this stage is over" >"$file.end"
}

run_round() {
  local name file
  in_parallel "$PARALLEL" run_group "$@"
  for name in "$@"; do
    file=$folder/${name//\//+}
    echo "# busbar: group $name begins"
    if [[ -s $file.out ]]; then
      grep -av 'NCCL INFO' "$file.out"
      grep -am1 'NCCL INFO NET/IB : Using' "$file.out"
    fi
    echo "# busbar: group $name $(<"$file.end")"
    rm -f "$file".*
  done
}

in_parallel "$LOGINS" await_worker "${hosts[@]}"
declare -A host_of=()
for host in "${hosts[@]}"; do
  if [[ -s $folder/$host.node ]]; then
    node=$(<"$folder/$host.node")
    host_of[$node]=$host
    echo "# busbar: worker ${host%%.*}$PLACED$node"
  else
    echo "# busbar: worker ${host%%.*} does not answer"
  fi
done
echo "# busbar: ${#host_of[@]} of ${#hosts[@]} $ANSWERS"
find_programs
round=()
for name in "$@"; do
  if [[ ${round[0]:-$name} != "${name%%/*}"/* ]]; then
    run_round "${round[@]}"
    round=()
  fi
  round+=("$name")
done
((${#round[@]} == 0)) || run_round "${round[@]}"
finish 0
