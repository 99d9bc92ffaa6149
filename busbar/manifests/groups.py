"""The launcher's script of one stage of a diagnosis: many runs on few nodes each (nccl-groups.sh)."""

from __future__ import annotations

from typing import Any

from busbar.manifests import launcher, shell
from busbar.manifests.nccljob import NcclJob, Stage
from busbar.manifests.ncclrun import NcclRun

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


def script(job: NcclJob, stage: Stage) -> str:
    """The bash script; its arguments are the groups of the stage. It ends with 0 whatever these gave."""
    of_rails = ("CUDA_VISIBLE_DEVICES", "NCCL_IB_HCA") if stage.hcas else ()
    names = dict.fromkeys((*launcher.exported(job), *of_rails))
    own = {
        **values(job, stage),
        "PROGRAM_FIX": launcher.PROGRAM_FIX,
        "HOSTFILE": launcher.HOSTFILE,
        "SSH_ARGS": launcher.SSH_ARGS,
        "LOGIN_SECONDS": LOGIN_SECONDS,
        "HANGS": _HANGS,
        "MPI_ARGS": [*job.mpi_args, *launcher.RSH_ARGS, *launcher.exports([*names])],
    }
    return shell.script(own, "nccl-lib", "nccl-groups-pods", "nccl-groups")


def values(job: NcclRun, stage: Stage) -> dict[str, Any]:
    """The values of groups on any launcher."""
    return {
        **launcher.common(job),
        "SLOTS": job.slots_per_worker,
        "PARALLEL": PARALLEL,
        "GROUP_SECONDS": GROUP_SECONDS,
        "WORKER_SECONDS": WORKER_SECONDS,
        "LOGINS": LOGINS,
        "PLACED": PLACED,
        "ANSWERS": ANSWERS,
        "ENDED": ENDED,
        "TIMED_OUT": TIMED_OUT,
        "NOT_RUN": NOT_RUN,
        "HCAS": stage.hcas,
    }
