"""Waits until Slurm has all nodes of all pools, then runs a job on them: the end of an update."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from busbar.finding import STACK, Finding, Fix
from busbar.frame import CheckResult
from busbar.kube.client import Api, ApiError
from busbar.kube.health import problem
from busbar.kube.objects import find
from busbar.kube.pods import issues_of, namespace_report
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, TimedOut, lasting, wait_until
from busbar.models import OutputModel, StrictModel
from busbar.operations.verify import CLUSTER
from busbar.outputs import ClusterOutputs
from busbar.text import listed
from stacks.slurm_k8s.package.config import Slurm
from stacks.slurm_k8s.package.pools import Pool, pools_of, refusals
from stacks.slurm_k8s.package.rest import (
    ACTIVE,
    WORKER,
    ProxyApi,
    SlurmApi,
    SlurmNode,
    pod_of,
    states_of,
    transient,
)
from stacks.slurm_k8s.package.survey import place
from stacks.slurm_k8s.package.values import API_VERSION, LOGIN_SERVICE, RELEASE, levels

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
    10: ("the job had fewer GPUs than the nodes", "compare gres.conf with /dev/nvidia* in a worker's pod"),
    11: (
        "a job may not lock all memory (ulimit -l), which RDMA needs",
        "set LimitMEMLOCK=infinity for K3s on the workers and restart it there",
    ),
    12: (
        "a library of the NVIDIA driver has 0 bytes in the pod of slurmd",
        "where it is empty on the host too, install the driver's packages again; else restart the container "
        "toolkit there, and delete the pod",
    ),
}
# A job waits with these reasons in a partition that a person has closed: busbar writes State=UP.
_CLOSED = ("PartitionDown", "PartitionInactive")
_DAEMONS = (
    ("Deployment", LOGIN_SERVICE, "nobody can submit"),
    ("StatefulSet", f"{RELEASE}-accounting", "no job is recorded"),
)
PROBED = "busbar/slurm-probe"
"""Annotation of a NodeSet: the Probe of its pool that passed last, as JSON."""


class Probe(OutputModel):
    """The last probe of a pool that passed, in the outputs too.

    `passed_at`: its time in UTC; "" if none has ever passed. `nodes`: the number of nodes that it ran on.
    `skipped`: why none ran at the end of the update; "" if one did.
    """

    passed_at: str = ""
    nodes: int = 0
    skipped: str = ""

    def __str__(self) -> str:
        last = f"the last one passed at {self.passed_at} on {self.nodes} nodes"
        last = last if self.passed_at else "none has ever passed"
        return f"none ran: {self.skipped}; {last}" if self.skipped else last


class Result(CheckResult):
    """The result of the step `ready`.

    `nodes`: worker -> its node of Slurm. `drained`: worker -> why a person keeps jobs away from it. `probes`:
    pool -> its Probe; none if Slurm was not ready for one.
    """

    nodes: dict[str, str] = Field(default={})
    drained: dict[str, str] = Field(default={})
    probes: dict[str, Probe] = Field(default={})


class PoolSpec(StrictModel):
    """A pool: the workers that Slurm must have, and what each offers to jobs."""

    workers: tuple[str, ...]
    gpus: int
    gres: str
    memlock: bool


class ReadySpec(StrictModel):
    """The request of the step `ready`. `levels`: as in survey.SurveySpec."""

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


def ready(api: ProxyApi, spec: ReadySpec, clock: Clock, progress: ProgressCallback) -> dict[str, Any]:
    """The step `ready`: wait for all nodes, then probe each pool. Returns a Result, in any case."""
    slurm = SlurmApi(api, spec.namespace)
    known: dict[str, SlurmNode] = {}
    probes: dict[str, Probe] = {}
    failed: list[Finding] = []

    def look() -> Iterator[Finding]:
        place(api, spec.levels)
        known.clear()
        known.update(slurm.nodes_by_host())
        return problems(slurm, api, spec, known)

    try:
        found = lasting(look, clock, spec.deadline_seconds, progress=progress, retry_on=transient)
        for name, pool in () if found else spec.pools.items():
            idle = [known[worker].name for worker in pool.workers if known[worker].idle]
            probes[name], why = _probed(api, slurm, name, pool, idle, clock, progress)
            failed += why
    except (TimedOut, ApiError) as error:
        found = [Finding((CLUSTER,), str(error))]
    if found:
        found += [Finding((CLUSTER,), text) for text in namespace_report(api, spec.namespace)]
    wanted = [worker for pool in spec.pools.values() for worker in pool.workers]
    nodes = {worker: known[worker].name for worker in wanted if worker in known}
    drained = {worker: known[worker].kept_away for worker in nodes if known[worker].kept_away}
    return Result.of([*found, *failed], nodes=nodes, drained=drained, probes=probes).model_dump()


def works(slurm: Slurm, cluster: ClusterOutputs, api: ProxyApi) -> list[Finding]:
    """Find what keeps jobs from running now (busbar.capability.Capability.ready). Raises ApiError."""
    if lacking := [*refusals(cluster, slurm)]:
        what = f"the nodes that Slurm needs are not known: {slurm.cluster} {lacking[0]}"
        return [Finding((CLUSTER,), what, kind="unknown")]
    asked = SlurmApi(api, slurm.namespace)
    spec = ReadySpec.of(slurm, pools_of(cluster, slurm))
    return [*problems(asked, api, spec, asked.nodes_by_host())]


def problems(slurm: SlurmApi, api: Api, spec: ReadySpec, known: Mapping[str, SlurmNode]) -> Iterator[Finding]:
    """Find what keeps jobs from running; `known`: Node -> its node of Slurm. Raises ApiError."""
    waits = {
        pod["spec"].get("nodeName", ""): f": pod {issue}"
        for pod in slurm.worker_pods()
        for issue in issues_of(pod)
    }
    for pool in spec.pools.values():
        yield from _missing(spec.namespace, pool, known, waits)
    for kind, name, then in _DAEMONS:
        found = find(api, f"/apis/apps/v1/namespaces/{spec.namespace}/{kind.lower()}s/{name}")
        if found and not (found.get("status") or {}).get("readyReplicas"):
            what = f"no pod of {kind} {spec.namespace}/{name} is ready: {then}"
            of_it = f"kubectl -n {spec.namespace} describe pods; kubectl -n {spec.namespace} logs"
            yield problem(what, f"{of_it} {kind.lower()}/{name}")
    for name, late in slurm.overdue().items():
        on = next((worker for worker, node in known.items() if node.name == name), CLUSTER)
        fix = (
            f"kubectl -n {spec.namespace} delete pod {pod_of(name)}, which ends its processes, and other "
            "jobs there; reboot the host of a pod that does not end"
        )
        yield problem(f"{name}: {late}", fix, on)


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
            yield problem(f"no node of Slurm{waits.get(worker, '')}", fix, worker)
        elif node.problem and not node.kept_away:
            repair = f"repair what the reason names; then: scontrol update nodename={node.name} state=resume"
            yield problem(f"{node.name} is {node.problem}", repair, worker)
        elif pool.gres not in re.split(r"[(,]", node.gres):
            what = f"{node.name} has GRES {node.gres or 'null'}, expected {pool.gres}"
            yield problem(what, "compare gres.conf with /dev/nvidia* in the pod of slurmd there", worker)


def _probed(
    api: Api,
    slurm: SlurmApi,
    name: str,
    pool: PoolSpec,
    idle: list[str],
    clock: Clock,
    progress: ProgressCallback,
) -> tuple[Probe, list[Finding]]:
    """Probe a pool, and note a pass at its NodeSet. Returns the last pass, and why the pool fails.

    If none can run, the earlier pass counts, with its time in the outputs. Without one the pool fails.
    """
    path = f"/apis/{API_VERSION}/namespaces/{slurm.namespace}/nodesets/{WORKER}{name}"
    noted = (api.get(path)["metadata"].get("annotations") or {}).get(PROBED)
    last = Probe.model_validate_json(noted) if noted else Probe()
    skipped, failed = _probe(slurm, name, pool, idle, clock, progress)
    if skipped:
        last = last.model_copy(update={"skipped": skipped})
        progress(f"pool {name}: probe: {last}")
        fix = "wait for an idle node in an open partition, and raise probe.run by one"
        failed = [] if last.passed_at else [Finding((f"pool {name}",), f"probe: {last}", fix)]
    elif not failed:
        last = Probe(passed_at=datetime.now(UTC).isoformat(timespec="seconds"), nodes=len(idle))
        api.merge(path, {"metadata": {"annotations": {PROBED: last.model_dump_json()}}})
    return last, failed


def _probe(
    slurm: SlurmApi, name: str, pool: PoolSpec, idle: list[str], clock: Clock, progress: ProgressCallback
) -> tuple[str, list[Finding]]:
    """Run a job with all GPUs of every idle node of a pool. Returns why none ran, and why it failed.

    Nodes on which jobs run are left out: these jobs have what the probe would ask for.
    """
    if not idle:
        return "no node is idle", []
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
        if not states & ACTIVE or job.get("state_reason") in _CLOSED:
            return job
        return Pending(f"probe {number} is {'+'.join(sorted(states))} ({job.get('state_reason')})")

    try:
        job = wait_until(
            look, Deadline(clock, PROBE_SECONDS), poll_seconds=1, progress=progress, retry_on=transient
        )
    except TimedOut as timeout:
        slurm.cancel(number)
        return "", [Finding((f"pool {name}",), str(timeout), f"squeue --start -j {number}; sinfo -R")]
    if "COMPLETED" in states_of(job):
        return "", []
    if "PENDING" in states_of(job):
        slurm.cancel(number)
        return f"partition {name} is closed ({job['state_reason']})", []
    code = int(((job.get("exit_code") or {}).get("return_code") or {}).get("number") or 0)
    comment = job.get("comment") or ""
    said = comment.get("job") if isinstance(comment, Mapping) else comment
    ended = f"it ended as {'+'.join(states_of(job))} with exit code {code}"
    why, fix = _CODES.get(code, (ended, "sinfo -R"))
    what = f"probe {number} on {listed(idle)}: {f'{said}: ' if said else ''}{why}"
    return "", [Finding((f"pool {name}",), what, fix)]
