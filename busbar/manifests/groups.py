"""The launcher's script of one stage of a diagnosis: many runs on few nodes each, in rounds.

Each group runs under its own time limit, and its output is one block between two marker lines. Which worker
is on which node is decided when the pods start: the workers tell it.
"""

from __future__ import annotations

import shlex
from typing import Any

from busbar.manifests import launcher
from busbar.manifests.nccljob import NcclJob, Stage

NODE_FILE = "/run/busbar-node"
"""On a worker: the name of its node."""
WORKER_SECONDS = 180
"""A worker that does not answer by then is left out."""
# One that accepts connections and does not answer them so often is not waited for any longer.
_HANGS = 3
LOGIN_SECONDS = 15
PARALLEL = 256
"""Groups that are measured at the same time."""
GROUP_SECONDS = 120
"""A group without a result by then is bad."""
LOGINS = 256
"""Workers that are waited for at the same time; each of the others is asked once at least."""

# Lines of the log: "GROUP NAME BEGINS", "GROUP NAME ENDED ..." and so on, "WORKER HOST PLACED NODE".
GROUP, WORKER = "# busbar: group ", "# busbar: worker "
BEGINS, ENDED, TIMED_OUT, NOT_RUN = "begins", "ended with exit code", "timed out after", "not run:"
PLACED = " is on node "
ANSWERS = "workers answer"

IN_PARALLEL = """\
folder=$(mktemp -d) || finish 1
# Calls a function with each of the words, COUNT at the same time.
in_parallel() {{
  local count=$1 call=$2 at pids=()
  shift 2
  for (( at = 1; at <= $# && at <= count; at++ )); do
    (for (( ; at <= $#; at += count )); do "$call" "${{!at}}"; done) &
    pids+=($!)
  done
  (( $# == 0 )) || wait "${{pids[@]}}"
}}
"""

_WORKERS = """\
await_worker() {{
  local node code hangs=0
  while :; do
    code=0
    # ssh takes the first value of an option. By its own limit it would end as where nothing listens.
    node=$(timeout {login_seconds} ssh -o ConnectTimeout=60 -o ConnectionAttempts=1 {ssh_args} \\
      "$1" cat {node_file} 2>/dev/null) || code=$?
    if [[ $code == 0 && $node ]]; then
      echo "$node" >"$folder/$1.node"
      return
    fi
    (( code != 124 )) || (( hangs += 1 ))
    (( SECONDS < {worker_seconds} && hangs < {hangs} )) || return 0
    sleep 1
  done
}}
hosts=()
while read -r host _; do hosts+=("$host"); done <{hostfile}
"""

ANSWERING = """\
in_parallel {logins} await_worker "${{hosts[@]}}"
declare -A host_of=()
for host in "${{hosts[@]}}"; do
  if [[ -s $folder/$host.node ]]; then
    node=$(<"$folder/$host.node")
    host_of[$node]=$host
    echo "# busbar: worker ${{host%%.*}}{placed}$node"
  else
    echo "# busbar: worker ${{host%%.*}} does not answer"
  fi
done
echo "# busbar: ${{#host_of[@]}} of ${{#hosts[@]}} {answers}"
"""

_PROGRAM = """\
program=$(find_program all_reduce_perf) || finish 127
"""

RUN_GROUP = """\
hcas=({hcas})
# Group A1/NODE/NODE: round, nodes; C0/rail2/NODE/NODE: one HCA and its GPU.
run_group() {{
  local file=$folder/${{1//\\//+}} nodes node host rail= slots={slots} left code=0 began=$SECONDS
  IFS=/ read -ra nodes <<<"$1"
  if [[ ${{nodes[0]}} == C* ]]; then
    rail=${{nodes[1]#rail}} slots=1
    nodes=("${{nodes[@]:1}}")
  fi
  nodes=("${{nodes[@]:1}}")
  for node in "${{nodes[@]}}"; do
    host=${{host_of[$node]:-}}
    if [[ ! $host ]]; then
      echo "{not_run} no worker on $node" >"$file.end"
      return
    fi
    echo "$host slots=$slots" >>"$file.hosts"
  done
  left=$(({measure_seconds} - SECONDS < {group_seconds} ? {measure_seconds} - SECONDS : {group_seconds}))
  if (( left > 0 )); then
    (
      if [[ $rail ]]; then
        export CUDA_VISIBLE_DEVICES=$rail NCCL_IB_HCA="=${{hcas[rail]}}"
      elif (( ${{#nodes[@]}} == 1 )); then
        # The names of the HCAs.
        export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET
      fi
"""

_MPIRUN = """\
      exec timeout --kill-after=5 "$left" "$mpirun" --allow-run-as-root "${{tag[@]}}" \\
        -np $((slots * ${{#nodes[@]}})) --hostfile "$file.hosts" {mpi_args} {exports} \\
        ${{LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH}} "$program" {arguments}
"""

ROUNDS = """\
    ) >"$file.out" 2>&1 </dev/null || code=$?
  fi
  # 137: it had to be killed.
  if (( left > 0 && (code == 124 || code == 137) && SECONDS - began >= left )); then
    if (( left < {group_seconds} )); then left=0; else echo "{timed_out} $left s" >"$file.end"; fi
  elif (( left > 0 )); then
    echo "{ended} $code after $((SECONDS - began)) s" >"$file.end"
  fi
  (( left > 0 )) || echo "{not_run} the time for this stage is over" >"$file.end"
}}
run_round() {{
  local name file
  in_parallel {parallel} run_group "$@"
  for name in "$@"; do
    file=$folder/${{name//\\//+}}
    echo "# busbar: group $name begins"
    if [[ -s $file.out ]]; then
      grep -av 'NCCL INFO' "$file.out"
      grep -am1 'NCCL INFO NET/IB : Using' "$file.out"
    fi
    echo "# busbar: group $name $(<"$file.end")"
    rm -f "$file".*
  done
}}
round=()
for name in "$@"; do
  if [[ ${{round[0]:-$name}} != "${{name%%/*}}"/* ]]; then
    run_round "${{round[@]}}"
    round=()
  fi
  round+=("$name")
done
(( ${{#round[@]}} == 0 )) || run_round "${{round[@]}}"
finish 0
"""


def script(job: NcclJob, stage: Stage) -> str:
    """The bash script; its arguments are the groups of the stage. It ends with 0 whatever these gave."""
    of_rails = ("CUDA_VISIBLE_DEVICES", "NCCL_IB_HCA") if stage.hcas else ()
    names = dict.fromkeys((*launcher.exported(job), *of_rails))
    parts = (
        launcher.START,
        launcher.RECORDING,
        launcher.FIND_PROGRAM,
        IN_PARALLEL,
        _WORKERS,
        ANSWERING,
        launcher.FIND_MPIRUN,
        _PROGRAM,
        RUN_GROUP,
        _MPIRUN,
        ROUNDS,
    )
    return "".join(parts).format(
        **launcher.common(job),
        **values(stage),
        program_fix=launcher.PROGRAM_FIX,
        hangs=_HANGS,
        login_seconds=LOGIN_SECONDS,
        ssh_args=launcher.SSH_ARGS,
        node_file=NODE_FILE,
        hostfile=launcher.HOSTFILE,
        slots=job.slots_per_worker,
        mpi_args=shlex.join([*job.mpi_args, "--mca", "plm_rsh_args", launcher.SSH_ARGS]),
        exports=shlex.join(launcher.exports([*names])),
    )


def values(stage: Stage) -> dict[str, Any]:
    """The values that the parts without _ are formatted with, beside `launcher.common` and `slots`."""
    return {
        "parallel": PARALLEL,
        "group_seconds": GROUP_SECONDS,
        "worker_seconds": WORKER_SECONDS,
        "logins": LOGINS,
        "placed": PLACED,
        "answers": ANSWERS,
        "ended": ENDED,
        "timed_out": TIMED_OUT,
        "not_run": NOT_RUN,
        "hcas": shlex.join(stage.hcas),
    }
