"""Waits until Slurm has all nodes of all pools, then runs a job on them: the end of an update."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from busbar.finding import STACK, Finding, Fix
from busbar.kube.client import Api, ApiError
from busbar.kube.objects import find
from busbar.kube.pods import issues_of, namespace_report
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, wait_until
from busbar.models import StrictModel
from busbar.operations.verify import CLUSTER
from busbar.text import listed
from stacks.slurm_k8s.package.config import Slurm
from stacks.slurm_k8s.package.pools import Pool
from stacks.slurm_k8s.package.rest import ENDED, ProxyApi, SlurmApi, SlurmNode, pod_of, states_of, transient
from stacks.slurm_k8s.package.survey import place
from stacks.slurm_k8s.package.values import LOGIN_SERVICE, levels

POLL_SECONDS = 3.0
PROBE_SECONDS = 180
# Every node of the job checks its GPUs, the memory that it may lock, and the libraries of the driver. What it
# prints becomes the job's comment.
_PROBE = """\
#!/bin/sh
said=$(srun --ntasks-per-node=1 sh -c '
  set -- $(echo "$CUDA_VISIBLE_DEVICES" | tr , " ")
  [ $# -eq {gpus} ] || exit 10
  [ {memlock} = any ] || [ "$(ulimit -l)" = unlimited ] || exit 11
  for name in libcuda.so.1 libnvidia-ml.so.1; do
    for file in /usr/lib/$name /usr/lib64/$name /usr/lib/*-linux-gnu/$name; do
      [ ! -e "$file" ] || [ -s "$file" ] || bad="$bad $SLURMD_NODENAME:$file"
    done
  done
  [ -z "$bad" ] || echo "$bad"
  [ -z "$bad" ] || exit 12
')
code=$?
[ -z "$said" ] || scontrol update jobid="$SLURM_JOB_ID" comment="$(echo $said)"
exit $code
"""
_CODES = {
    10: "the job had fewer GPUs than the nodes. Fix: compare gres.conf with /dev/nvidia* in a worker's pod",
    11: "a job may not lock all memory (ulimit -l), which RDMA needs. Fix: set LimitMEMLOCK=infinity for K3s "
    "on the workers and restart it there",
    12: "a library of the NVIDIA driver has 0 bytes in the pod of slurmd. Fix: where it is empty on the host "
    "too, install the driver's packages again; else restart the container toolkit there, and delete the pod",
}


# A job waits with these reasons in a partition that a person has closed: busbar writes State=UP.
_CLOSED = ("PartitionDown", "PartitionInactive")


class _Closed(Exception):
    """A partition in which no job starts."""


class PoolSpec(StrictModel):
    """A pool: the workers that Slurm must have, and what each offers to jobs."""

    workers: tuple[str, ...]
    gpus: int
    gres: str
    memlock: bool


class ReadySpec(StrictModel):
    """Stdin of `busbar slurm_k8s ready`. `levels`: as in survey.SurveySpec."""

    namespace: str
    levels: dict[str, tuple[str, ...]] = Field(default={})
    pools: dict[str, PoolSpec]
    deadline_seconds: float = Field(gt=0)

    @classmethod
    def of(cls, slurm: Slurm, pools: Mapping[str, Pool]) -> ReadySpec:
        """The request for a configuration."""
        return cls(
            namespace=slurm.namespace,
            pools={
                name: PoolSpec(
                    workers=pool.launch.workers,
                    gpus=pool.launch.gpus,
                    gres=pool.gres,
                    memlock=pool.needs_memlock,
                )
                for name, pool in pools.items()
            },
            levels=levels(pools),
            deadline_seconds=slurm.timeout_seconds,
        )


def ready(
    slurm: SlurmApi, api: Api, spec: ReadySpec, clock: Clock, progress: ProgressCallback
) -> dict[str, Any]:
    """Wait, then probe each pool. Returns {"passed", "reasons", "nodes", "drained"}, in any case."""
    reasons: list[str] = []
    known: dict[str, SlurmNode] = {}

    def look() -> bool | Pending:
        known.clear()
        known.update({node.on: node for node in slurm.nodes().values() if node.on})
        reasons[:] = map(str, problems(slurm, api, spec, known))
        return Pending(reasons[0]) if reasons else True

    deadline = Deadline(clock, spec.deadline_seconds)
    try:
        wait_until(lambda: place(api, spec.levels), deadline, poll_seconds=POLL_SECONDS, progress=progress)
        wait_until(look, deadline, poll_seconds=POLL_SECONDS, progress=progress, retry_on=transient)
        for name, pool in spec.pools.items():
            try:
                reasons += probe(slurm, name, pool, known, clock, progress)
            except _Closed as state:
                progress(f"pool {name}: {state}, so no probe")
    except (TimedOut, ApiError) as error:
        reasons = [*(reasons or [str(error)]), *namespace_report(api, spec.namespace)]
    wanted = [worker for pool in spec.pools.values() for worker in pool.workers]
    nodes = {worker: known[worker].name for worker in wanted if worker in known}
    drained = {worker: known[worker].kept_away for worker in nodes if known[worker].kept_away}
    return {"passed": not reasons, "reasons": reasons, "nodes": nodes, "drained": drained}


def works(api: ProxyApi, spec: ReadySpec) -> list[Finding]:
    """What keeps jobs from running now; changes nothing. Raises ApiError."""
    slurm = SlurmApi(api, spec.namespace)
    known = {node.on: node for node in slurm.nodes().values() if node.on}
    return [*problems(slurm, api, spec, known)]


def problems(slurm: SlurmApi, api: Api, spec: ReadySpec, known: Mapping[str, SlurmNode]) -> Iterator[Finding]:
    """What keeps jobs from running; `known`: Node -> its node of Slurm. Raises ApiError."""
    waits = {
        pod["spec"].get("nodeName", ""): f": pod {issue}"
        for pod in slurm.worker_pods()
        for issue in issues_of(pod)
    }
    for pool in spec.pools.values():
        yield from _missing(spec.namespace, pool, known, waits)
    login = find(api, f"/apis/apps/v1/namespaces/{spec.namespace}/deployments/{LOGIN_SERVICE}")
    if login and not (login.get("status") or {}).get("readyReplicas"):
        what = f"no pod of Deployment {spec.namespace}/{LOGIN_SERVICE} is ready: nobody can submit"
        yield _problem(CLUSTER, what, f"kubectl -n {spec.namespace} describe pods")
    for name, late in slurm.overdue().items():
        on = next((worker for worker, node in known.items() if node.name == name), CLUSTER)
        fix = (
            f"kubectl -n {spec.namespace} delete pod {pod_of(name)}, which ends its processes, and other "
            "jobs there; reboot the host of a pod that does not end"
        )
        yield _problem(on, f"{name}: {late}", fix)


def _problem(host: str, what: str, fix: Fix | str) -> Finding:
    return Finding((host,), what, fix, kind="site")


def _missing(
    namespace: str, pool: PoolSpec, known: Mapping[str, SlurmNode], waits: Mapping[str, str]
) -> Iterator[Finding]:
    """The reasons that keep workers of a pool from jobs. What a person has set is respected.

    `waits`: Node -> why the pod of slurmd there is not ready.
    """
    for worker in pool.workers:
        node = known.get(worker)
        if node is None:
            other = f"; else: kubectl -n {namespace} get pods -o wide, and repair the host of the pod"
            command = ("up", STACK, "--converge", CLUSTER)
            fix = Fix("if `busbar verify` names its NodeSet", command, when=other)
            yield _problem(worker, f"no node of Slurm{waits.get(worker, '')}", fix)
        elif node.problem and not node.kept_away:
            repair = f"repair what the reason names; then: scontrol update nodename={node.name} state=resume"
            yield _problem(worker, f"{node.name} is {node.problem}", repair)
        elif pool.gres not in re.split(r"[(,]", node.gres):
            what = f"{node.name} has GRES {node.gres or 'null'}, expected {pool.gres}"
            yield _problem(worker, what, "compare gres.conf with /dev/nvidia* in the pod of slurmd there")


def probe(
    slurm: SlurmApi,
    name: str,
    pool: PoolSpec,
    known: Mapping[str, SlurmNode],
    clock: Clock,
    progress: ProgressCallback,
) -> list[str]:
    """Run a job with all GPUs of every idle node of a pool. Returns why it failed; empty where it passed.

    Nodes on which jobs run are left out: these jobs have what the probe would ask for. Raises _Closed where a
    person has closed the partition.
    """
    idle = [known[worker].name for worker in pool.workers if known[worker].idle]
    if not idle:
        progress(f"pool {name}: no node is idle, so no probe")
        return []
    number = slurm.submit(
        _PROBE.format(gpus=pool.gpus, memlock="all" if pool.memlock else "any"),
        {
            "name": "busbar-probe",
            "partition": name,
            "nodes": str(len(idle)),
            "required_nodes": idle,
            "tres_per_node": f"gres/gpu:{pool.gpus}",
            "tasks": len(idle),
            "current_working_directory": "/tmp",
            "standard_output": "/dev/null",
            "environment": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "time_limit": {"set": True, "number": 2},
        },
    )
    progress(f"pool {name}: probe {number} on {listed(idle)}")

    def look() -> Mapping[str, Any] | Pending:
        job = slurm.job(number)
        states = set(states_of(job))
        if states & ENDED or job.get("state_reason") in _CLOSED:
            return job
        return Pending(f"probe {number} is {'+'.join(sorted(states))} ({job.get('state_reason')})")

    try:
        job = wait_until(
            look, Deadline(clock, PROBE_SECONDS), poll_seconds=1, progress=progress, retry_on=transient
        )
    except TimedOut as timeout:
        slurm.cancel(number)
        return [f"pool {name}: {timeout}. Fix: squeue --start -j {number}; sinfo -R"]
    if "COMPLETED" in states_of(job):
        return []
    if "PENDING" in states_of(job):
        slurm.cancel(number)
        raise _Closed(f"partition {name} is closed ({job['state_reason']})")
    code = int(((job.get("exit_code") or {}).get("return_code") or {}).get("number") or 0)
    comment = job.get("comment") or ""
    said = comment.get("job") if isinstance(comment, Mapping) else comment
    why = _CODES.get(code, f"it ended as {'+'.join(states_of(job))} with exit code {code}. Fix: sinfo -R")
    return [f"pool {name}: probe {number} on {listed(idle)}: {f'{said}: ' if said else ''}{why}"]
