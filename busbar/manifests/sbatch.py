"""The sbatch script of one measurement: the same job as the MPIJob's, started by Slurm.

Settings of the public scripts (coreweave/nccl-tests slurm/ at cb86553) are in docs/measuring.md, with
the reason where this one differs.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from busbar.judge.nccl.expected.profiles import Profile
from busbar.manifests import groups, shell
from busbar.manifests.launcher import LAUNCHER, collectives, common
from busbar.manifests.nccljob import Stage
from busbar.manifests.ncclrun import BASE_ENV, NcclRun

# A pod's interface is eth0; a host's is not known before the job runs.
INTERFACES = ("NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include")

# PMIx's shared memory fails in containers with a /tmp of their own (coreweave/nccl-tests slurm/).
SLURM_ENV: Mapping[str, str] = {"PMIX_MCA_gds": "^ds12"}

PROGRAM_FIX = "install nccl-tests there, or give an image with it"


def request(job: NcclRun, profile: Profile | None, image: str | None = None) -> dict[str, Any]:
    """What the script of these arguments measures: the name of its job is a digest of it, not of the text."""
    segment = segment_size(len(job.nodes), profile.nodes_per_domain if profile else 1)
    return {**job.request, "image": image, "segment": segment, "launcher": LAUNCHER}


def script(job: NcclRun, profile: Profile | None, image: str | None = None) -> str:
    """The whole script. `image`: what pyxis starts, such as a .sqsh file; None: nccl-tests on the nodes.

    Without a profile all is as the job says.

    Only srun gets the image: in `#SBATCH` it would hold for the script itself, which needs Slurm's commands.
    """
    unset = [word for name in job.all_reduce_env for word in ("-u", name)]
    values = {**common(job), "COLLECTIVES": collectives(job, (), unset)}
    return with_files(job, profile, image, values, "nccl-measure")


def with_files(
    job: NcclRun, profile: Profile | None, image: str | None, values: shell.Values, *files: str
) -> str:
    """The script that ends with other runs, which are prepared in the same way: those of `files`."""
    env = {**job.env, **SLURM_ENV}
    env = {name: value for name, value in env.items() if name not in INTERFACES or value != BASE_ENV[name]}
    directives = "".join(f"#SBATCH {option}\n" for option in _options(job, profile))
    values = {
        **values,
        "PROGRAM_FIX": PROGRAM_FIX,
        "CONTAINER": _container(job, image) if image else (),
        "SLOTS": job.slots_per_worker,
        "MPI_ARGS": job.mpi_args,
    }
    exported = "".join(f"export {name}={shlex.quote(env[name])}\n" for name in sorted(env))
    return f"#!/bin/bash\n{directives}{exported}" + shell.script(values, "nccl-lib", "nccl-sbatch", *files)


def _options(job: NcclRun, profile: Profile | None) -> Iterator[str]:
    """The options of the job; its name, partition and log are arguments of sbatch (slurm-job.sh)."""
    yield f"--nodes={len(job.nodes)}"
    yield f"--ntasks-per-node={job.slots_per_worker}"
    yield f"--gpus-per-node={job.gpus_per_node}"
    yield "--exclusive"
    yield "--mem=0"
    yield "--distribution=block:block"
    yield f"--time={math.ceil(job.deadline_seconds / 60)}"
    # A job that is queued again would write over its log.
    yield "--no-requeue"
    if segment := segment_size(len(job.nodes), profile.nodes_per_domain if profile else 1):
        yield f"--segment={segment}"


def segment_size(nodes: int, domain: int) -> int | None:
    """Nodes that Slurm places in one NVLink domain: as many as fit and divide `nodes`; None where none do."""
    if domain == 1:
        return None
    largest = max(size for size in range(1, min(nodes, domain) + 1) if nodes % size == 0)
    return largest if largest > 1 else None


def _container(job: NcclRun, image: str) -> list[str]:
    mounts = [f"--container-mounts={','.join(sorted(job.host_paths))}"] if job.host_paths else []
    return [f"--container-image={image}", *mounts, "--no-container-remap-root", "--no-container-mount-home"]


def script_of_groups(job: NcclRun, stage: Stage, profile: Profile | None, image: str | None = None) -> str:
    """The whole script, as `sbatch.script`. It ends with 0 whatever the groups gave."""
    values = {**groups.values(job, stage), "STAGE_GROUPS": stage.groups}
    return with_files(job, profile, image, values, "nccl-groups-slurm", "nccl-groups")
