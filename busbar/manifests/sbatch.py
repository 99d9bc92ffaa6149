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
from busbar.manifests.launcher import FIND_PROGRAM, LAUNCHER, RECORDING, common
from busbar.manifests.ncclrun import BASE_ENV, NcclRun

# A pod's interface is eth0; a host's is not known before the job runs.
INTERFACES = ("NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include")

# PMIx's component for shared memory between ranks fails in containers with a /tmp of their own
# (coreweave/nccl-tests slurm/).
SLURM_ENV: Mapping[str, str] = {"PMIX_MCA_gds": "^ds12"}

_HEADER = """\
#!/bin/bash
# NCCL test of {title}
# Partition and number of nodes are options of sbatch: sbatch --partition=NAME [-N NODES] SCRIPT
# The log is {name}_JOBID.out: busbar nccl check LOG{options}
{directives}
{site_env}set -uo pipefail
if [[ -z ${{SLURM_JOB_ID:-}} ]]; then
  echo "error: this script runs in a Slurm job. Fix: sbatch --partition=NAME $0" >&2
  exit 64
fi
# All output is counted on its way out, so that a log that was cut is noticed.
"""

_PREPARE = """\
{env}
# Ranks find each other over the interface that leads to another node, where NCCL_SOCKET_IFNAME is not set.
# That of the default route may belong to a management network: it is the second choice.
interface_to() {{
  local address
  address=$(scontrol --oneliner show node "$1" 2>/dev/null | sed -n 's/.* NodeAddr=\\([^ ]*\\) .*/\\1/p')
  address=$(getent ahosts "${{address:-$1}}" | awk '{{ print $1; exit }}')
  [[ $address ]] && ip -o route get "$address" 2>/dev/null | sed -n 's/.* dev \\([^ ]*\\) .*/\\1/p'
}}
if [[ -z ${{NCCL_SOCKET_IFNAME:-}} ]]; then
  interface=
  for node in $(scontrol show hostnames "${{SLURM_JOB_NODELIST:-}}" 2>/dev/null); do
    [[ $node != "${{SLURMD_NODENAME:-}}" ]] || continue
    interface=$(interface_to "$node")
    break
  done
  [[ $interface && $interface != lo ]] || interface=$(ip -o route show default 2>/dev/null |
    sed -n '1s/.* dev \\([^ ]*\\) .*/\\1/p')
  [[ ! $interface ]] || export NCCL_SOCKET_IFNAME=$interface OMPI_MCA_btl_tcp_if_include=$interface
fi
# Slurm also lists pmix where the library that it loads, libpmix, is missing.
types=" $(srun --mpi=list 2>&1 | tr -s '[:space:],:' ' ') "
mpi=
for type in pmix pmi2; do
  [[ ! $mpi && $types == *" $type "* ]] || continue
  timeout 60 srun --mpi=$type --nodes=1 --ntasks=1 true >/dev/null 2>&1 && mpi=$type
done
{container}if [[ $mpi ]]; then
  run=(srun "--mpi=$mpi" --kill-on-bad-exit=1 --cpu-bind=none{options})
else
  mpirun=$(command -v mpirun) || {{
    echo "# busbar: no working srun --mpi=pmix or pmi2, and no mpirun. Fix: install libpmix for Slurm"
    finish 127
  }}
  tag=(--tag-output)
  [[ $("$mpirun" --version 2>&1) == *'(Open MPI) 5.'* ]] && tag=(--output tag)
  run=("$mpirun" "${{tag[@]}}" -np "$((SLURM_JOB_NUM_NODES * {slots}))" {mpi_args})
fi
# A rank looks for the program where it runs: on the nodes, or in the image.
rank=$(
  cat <<'END'
{find_program}program=$(find_program "$1_perf") && exec "$program" "${{@:2}}"
END
)
"""

_MEASURE = """\
worst=0
measure() {{
  local code=0
  echo "# busbar: measuring $1"
  timeout --kill-after=5 $(({measure_seconds} > SECONDS ? {measure_seconds} - SECONDS : 1)) \\
    env "${{@:2}}" "${{run[@]}}" bash -c "$rank" busbar "$1" {arguments} || code=$?
  (( code != 124 )) || echo "# busbar: $1 timed out: the limit for all collectives is {measure_seconds} s"
  echo "# busbar: $1 ended with exit code $code"
  (( code == 0 )) || worst=$code
}}
{measurements}
finish $worst
"""

_CONTAINER = """\
if [[ $(srun --help 2>&1) != *--container-image* ]]; then
  echo "# busbar: srun has no --container-image: pyxis is not installed here. Fix: install enroot and pyxis \\
on all nodes, or print the script without --image for nccl-tests on the nodes"
  finish 64
fi
if [[ ! $mpi ]]; then
  echo "# busbar: no working srun --mpi=pmix or pmi2 for an image. Fix: install libpmix for Slurm"
  finish 64
fi
"""


def request(job: NcclRun, profile: Profile | None, image: str | None = None) -> dict[str, Any]:
    """What the script of these arguments measures: the name of its job is a digest of it, not of the text."""
    segment = segment_size(len(job.nodes), profile.nodes_per_domain if profile else 1)
    return {**job.request, "image": image, "segment": segment, "launcher": LAUNCHER}


def script(job: NcclRun, profile: Profile | None, image: str | None = None) -> str:
    """The whole script. `image`: what pyxis starts, such as a .sqsh file; None: nccl-tests on the nodes.

    Without a profile all is as the job says.

    Only srun gets the image: in `#SBATCH` it would hold for the script itself, which needs Slurm's commands.
    """
    lines = "\n".join(shlex.join(["measure", name, *_unset(job, name)]) for name in job.collectives)
    return with_body(job, profile, image, _MEASURE, measurements=lines)


def with_body(job: NcclRun, profile: Profile | None, image: str | None, body: str, **values: Any) -> str:
    """The script with other runs, which are prepared in the same way: BODY, formatted with VALUES."""
    env = {name: value for name, value in {**job.env, **SLURM_ENV}.items() if not _of_pods(name, value)}
    values = {**common(job), **values}
    program_fix = "install nccl-tests there, or give an image with it"
    header = _HEADER.format(
        title=f"{profile.name}: {profile.description}" if profile else job.pool,
        name=_name(job, profile),
        options=_check_options(job, profile),
        directives="\n".join(f"#SBATCH {option}" for option in _options(job, profile)),
        site_env=_site_env(profile) if profile else "",
    )
    return header + (RECORDING + _PREPARE + body).format(
        **values,
        find_program=FIND_PROGRAM.format(**values, program_fix=program_fix),
        env="\n".join(f"export {name}={shlex.quote(env[name])}" for name in sorted(env)),
        container=_CONTAINER if image else "",
        options=f" {shlex.join(_container(job, image))}" if image else "",
        slots=job.slots_per_worker,
        mpi_args=shlex.join(job.mpi_args),
    )


def _name(job: NcclRun, profile: Profile | None) -> str:
    return f"nccl-{profile.name if profile else job.pool}"


def _of_pods(name: str, value: str) -> bool:
    return name in INTERFACES and value == BASE_ENV[name]


def _check_options(job: NcclRun, profile: Profile | None) -> str:
    """What `busbar nccl check` has to be told."""
    part = profile is None or job.slots_per_worker != profile.gpus_per_node
    known = f" --profile {profile.name}" if profile else ""
    return f"{known} --gpus-per-node {job.slots_per_worker}" if part else known


def _options(job: NcclRun, profile: Profile | None) -> Iterator[str]:
    yield f"--job-name={_name(job, profile)}"
    yield f"--nodes={len(job.nodes)}"
    yield f"--ntasks-per-node={job.slots_per_worker}"
    yield f"--gpus-per-node={job.gpus_per_node}"
    yield "--exclusive"
    yield "--mem=0"
    yield "--distribution=block:block"
    yield f"--time={math.ceil(job.deadline_seconds / 60)}"
    yield "--output=%x_%j.out"
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


def _site_env(profile: Profile) -> str:
    """What the profile's source sets besides, as comments: right only where devices have its names."""
    lines = [f"#   export {name}={shlex.quote(value)}" for name, value in sorted(profile.site_env.items())]
    if not lines:
        return ""
    return "\n".join(["# Where devices have the names of the profile's source, before sbatch:", *lines, ""])


def _container(job: NcclRun, image: str) -> list[str]:
    mounts = [f"--container-mounts={','.join(sorted(job.host_paths))}"] if job.host_paths else []
    return [
        f"--container-image={image}",
        *mounts,
        "--no-container-remap-root",
        "--no-container-mount-home",
    ]


def _unset(job: NcclRun, collective: str) -> list[str]:
    """Arguments of env: variables that only all_reduce may see."""
    names = () if collective == "all_reduce" else job.all_reduce_env
    return [word for name in names for word in ("-u", name)]
