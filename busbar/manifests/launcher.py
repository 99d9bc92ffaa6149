"""The launcher's script: one mpirun per collective, one after the other, all in one log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from busbar.judge import COUNT_LINE, FIRST_LINE, LAST_LINE
from busbar.manifests.nccljob import NcclJob
from busbar.manifests.ncclrun import NcclRun
from busbar.manifests.shell import script as shell

LAUNCHER = 1
"""The number of the scripts in the request of a job, whose name does not depend on their text.

Raise it where a new text measures something else, and say so in the release notes: every site then measures
again."""

HOSTFILE = "/etc/mpi/hostfile"
NODE_FILE = "/run/busbar-node"
"""In a worker's pod: the name of its node."""

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
RSH_ARGS = ("--mca", "plm_rsh_args", SSH_ARGS)

# At its deadline a Job deletes its pod with the log. The launcher ends a run that hangs this long before.
MARGIN_SECONDS = 15

PROGRAM_FIX = "set validation.image to one with nccl-tests"
COUNT_SECONDS = 10
NAMES_SECONDS = 120


def script(job: NcclJob) -> str:
    """The bash script of the launcher (nccl-launcher.sh)."""
    everywhere = [name for name in exported(job) if name not in job.all_reduce_env]
    of_all_reduce = exports(job.all_reduce_env)
    values = {
        **common(job),
        "PROGRAM_FIX": PROGRAM_FIX,
        "HOSTFILE": HOSTFILE,
        "NAMES_SECONDS": min(NAMES_SECONDS, job.deadline_seconds // 2),
        "RANKS": job.ranks,
        "MPI_ARGS": [*job.mpi_args, *RSH_ARGS, *exports(everywhere)],
        "COLLECTIVES": collectives(job, of_all_reduce),
    }
    return shell(values, "nccl-lib", "nccl-launcher", "nccl-measure")


def common(job: NcclRun) -> dict[str, Any]:
    """The values of all scripts: those of nccl-lib.sh, the time limit and the arguments of nccl-tests."""
    arguments = [
        *("-b", job.min_bytes, "-e", job.max_bytes, "-f", job.step_factor),
        *("-n", job.iterations, "-w", job.warmup, "-c", 1, "-g", 1),
    ]
    return {
        "FIRST_LINE": FIRST_LINE,
        "LAST_LINE": LAST_LINE,
        "COUNT_LINE": COUNT_LINE,
        "COUNT_SECONDS": COUNT_SECONDS,
        "PROGRAM_FOLDERS": PROGRAM_FOLDERS,
        "NODE_FILE": NODE_FILE,
        "MEASURE_SECONDS": max(job.deadline_seconds - MARGIN_SECONDS, 1),
        "ARGUMENTS": [*map(str, arguments)],
    }


def collectives(job: NcclRun, all_reduce: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """The collectives, each with its arguments."""
    return [" ".join([each, *(all_reduce if each == "all_reduce" else others)]) for each in job.collectives]


def exported(job: NcclJob) -> list[str]:
    """Variables that mpirun passes to the ranks. OMPI_ names are for mpirun itself, which passes them on."""
    return [name for name in sorted(job.env) if not name.startswith("OMPI_")]


def exports(names: Sequence[str]) -> list[str]:
    """Arguments of mpirun. `-x NAME` passes the launcher's own value, so no value needs quoting again."""
    return [word for name in names for word in ("-x", name)]
