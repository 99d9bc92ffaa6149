"""The launcher's script: one mpirun per collective, one after the other, all in one log."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from busbar.judge import COUNT_LINE, FIRST_LINE, LAST_LINE
from busbar.manifests.nccljob import NcclJob
from busbar.manifests.ncclrun import NcclRun

LAUNCHER = 1
"""The number of the scripts in the request of a job, whose name does not depend on their text.

Raise it where a new text measures something else, and say so in the release notes: every site then measures
again."""

HOSTFILE = "/etc/mpi/hostfile"

# Where public images keep nccl-tests when it is not on PATH.
PROGRAM_FOLDERS = (
    "/opt/nccl_tests/build",
    "/opt/nccl-tests/build",
    "/usr/local/nccl-tests/build",
    "/workspace/nccl-tests/build",
)

# The workers' host keys are generated when their pods start, so they cannot be known before; the pod network
# is the cluster's own. An sshd that is Ready can still refuse a burst of logins: hence the attempts.
SSH_ARGS = (
    "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "
    "-o ConnectTimeout=10 -o ConnectionAttempts=60"
)

# At its deadline a Job deletes its pod, and the log with it. The launcher therefore stops a run that hangs
# itself, this long before the deadline.
MARGIN_SECONDS = 15

PROGRAM_FIX = "set validation.image to one with nccl-tests"

# How long the count may take at the end: a process that outlives mpirun keeps the pipe open.
COUNT_SECONDS = 10

# A worker's name is published when its pod is Ready, and may take a moment to reach every DNS cache; ssh does
# not retry a name.
NAMES_SECONDS = 120

# Counts what the script prints, and ends it with that and its exit code.
RECORDING = """\
counts=
if type -P mktemp tee wc sleep >/dev/null && counts=$(mktemp); then
  exec 3>&1 4> >(exec wc -lc >"$counts")
  exec > >(exec tee /dev/fd/4) 2>&1 4>&-
fi
finish() {{
  if [[ $counts ]]; then
    exec >&3 2>&1
    local lines bytes limit=$((SECONDS + {count_seconds}))
    until [[ -s $counts ]] || (( SECONDS >= limit )); do sleep 0.1; done
    read -r lines bytes <"$counts" && echo {count_line} "$lines lines, $bytes bytes"
    rm -f "$counts"
  fi
  echo {last_line} "$1"
  exit "$1"
}}
echo {first_line}
"""

FIND_PROGRAM = """\
find_program() {{
  command -v "$1" && return
  local folder
  for folder in {folders}; do
    [[ -x $folder/$1 ]] && echo "$folder/$1" && return
  done
  echo "# busbar: no program $1 on PATH or in {folders}. Fix: {program_fix}" >&2
  return 127
}}
"""

FIND_MPIRUN = """\
# By its absolute path: Open MPI then finds its own files there on the workers too, where ssh sets no PATH.
mpirun=$(command -v mpirun) || {{
  echo "# busbar: no program mpirun on PATH. Fix: set validation.image to one with Open MPI"
  finish 127
}}
tag=(--tag-output)
[[ $("$mpirun" --version 2>&1) == *'(Open MPI) 5.'* ]] && tag=(--output tag)
"""

START = """\
set -uo pipefail
# All output is counted on its way out: the kubelet serves a log that has been rotated twice with a hole.
"""

_AWAIT_NAMES = """\
await_names() {{
  command -v getent >/dev/null || return
  local name limit=$((SECONDS + {names_seconds}))
  while read -r name _; do
    until getent hosts "$name" >/dev/null; do
      if (( SECONDS >= limit )); then
        echo "# busbar: $name does not resolve after {names_seconds} s"
        return
      fi
      sleep 1
    done
  done <{hostfile}
}}
await_names
"""

_MEASURE = """\
mpi=("$mpirun" --allow-run-as-root "${{tag[@]}}" -np {ranks} --hostfile {hostfile} {mpi_args} {exports})
[[ -n ${{LD_LIBRARY_PATH:-}} ]] && mpi+=(-x LD_LIBRARY_PATH)
worst=0
measure() {{
  local program code=0
  echo "# busbar: measuring $1"
  program=$(find_program "$1_perf") &&
    timeout --kill-after=5 $(({measure_seconds} > SECONDS ? {measure_seconds} - SECONDS : 1)) \\
      "${{mpi[@]}}" "${{@:2}}" "$program" {arguments} || code=$?
  (( code != 124 )) || echo "# busbar: $1 timed out: the limit for all collectives is {measure_seconds} s"
  echo "# busbar: $1 ended with exit code $code"
  (( code == 0 )) || worst=$code
}}
{measurements}
finish $worst
"""


def script(job: NcclJob) -> str:
    """The bash script of the launcher.

    A collective that fails does not stop the next one. The script's exit code is that of the last one that
    failed, so that the job fails too.
    """
    names = exported(job)
    everywhere = [name for name in names if name not in job.all_reduce_env]
    return (START + RECORDING + FIND_PROGRAM + _AWAIT_NAMES + FIND_MPIRUN + _MEASURE).format(
        **common(job),
        program_fix=PROGRAM_FIX,
        ranks=job.ranks,
        hostfile=HOSTFILE,
        names_seconds=min(NAMES_SECONDS, job.deadline_seconds // 2),
        mpi_args=shlex.join([*job.mpi_args, "--mca", "plm_rsh_args", SSH_ARGS]),
        exports=shlex.join(exports(everywhere)),
        measurements="\n".join(
            shlex.join(["measure", name, *(exports(job.all_reduce_env) if name == "all_reduce" else ())])
            for name in job.collectives
        ),
    )


def common(job: NcclRun) -> dict[str, Any]:
    """What RECORDING and FIND_PROGRAM are formatted with, the time limit and the arguments of nccl-tests."""
    arguments = [
        *("-b", job.min_bytes, "-e", job.max_bytes, "-f", job.step_factor),
        *("-n", job.iterations, "-w", job.warmup, "-c", 1, "-g", 1),
    ]
    return {
        "first_line": shlex.quote(FIRST_LINE),
        "last_line": shlex.quote(LAST_LINE),
        "count_line": shlex.quote(COUNT_LINE),
        "count_seconds": COUNT_SECONDS,
        "folders": " ".join(PROGRAM_FOLDERS),
        "measure_seconds": max(job.deadline_seconds - MARGIN_SECONDS, 1),
        "arguments": " ".join(map(str, arguments)),
    }


def exported(job: NcclJob) -> list[str]:
    """Variables that mpirun passes to the ranks. OMPI_ names are for mpirun itself, which passes them on."""
    return [name for name in sorted(job.env) if not name.startswith("OMPI_")]


def exports(names: Sequence[str]) -> list[str]:
    """Arguments of mpirun. `-x NAME` passes the launcher's own value, so no value needs quoting again."""
    return [word for name in names for word in ("-x", name)]
