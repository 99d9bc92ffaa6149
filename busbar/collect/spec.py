"""stdin and stdout of `busbar nccl collect`: the request and the verdict, both as JSON."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from busbar.config import Cluster
from busbar.manifests.nccljob import NcclJob
from busbar.nccl.schema import SCHEMA

# The collector waits this much longer than the job may run, for the operator to record a job that ended at
# its own deadline.
GRACE_SECONDS = 60


class CollectSpec(BaseModel):
    """What to collect and by which expectation to judge it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespace: str
    job: str = Field(description="Name of the MPIJob.")
    folder: str = Field(description="Where log, verdict and report are kept, relative to the project.")
    deadline_seconds: float = Field(gt=0)
    expectation: dict[str, Any] = Field(description="See busbar.nccl.Expectation.")


def collect_spec(cluster: Cluster, job: NcclJob, job_name: str, *, folder: str) -> dict[str, Any]:
    """The spec of one pool's measurement, as plain JSON values."""
    return CollectSpec(
        namespace=job.namespace,
        job=job_name,
        folder=folder,
        deadline_seconds=job.deadline_seconds + GRACE_SECONDS,
        expectation=expectation(cluster, job, job_name),
    ).model_dump(mode="json")


def expectation(cluster: Cluster, job: NcclJob, job_name: str) -> dict[str, Any]:
    """What the measurement must show, from the pool's hardware and the validation's configuration."""
    pool, validation = cluster.pools[job.pool], cluster.validation
    topology_file = job.env.get("NCCL_TOPO_FILE")
    return {
        "nodes": len(job.nodes),
        "gpus_per_node": job.slots_per_worker,
        "gpu": pool.gpu_model,
        "rails": pool.rails,
        "rate_gbps": pool.rate_gbps,
        "transport": job.transport,
        "algorithm": job.algorithm,
        "collectives": list(job.collectives),
        "min_bytes": job.min_bytes,
        "max_bytes": job.max_bytes,
        "step_factor": job.step_factor,
        "expected_busbw_gbps": validation.expected_busbw_gbps,
        "expected_by_collective": dict(validation.expected_by_collective),
        "tolerance": validation.tolerance,
        "profile": validation.profile,
        "topology_file": topology_file,
        "require_topology_file": topology_file is not None,
        "hcas": list(validation.hcas),
        "hosts": [f"{job_name}-worker-{index}" for index in range(len(job.nodes))],
    }


def read_verdict(
    stdout: str | None, *, command: str = "nccl collect", schema: int = SCHEMA
) -> dict[str, Any]:
    """The verdict that the collector printed. Never raises: any other text is a verdict "unknown"."""
    try:
        verdict = json.loads(stdout or "")
        if isinstance(verdict, dict) and isinstance(verdict.get("passed"), bool):
            return verdict
        problem = "it is not a verdict"
    except ValueError as error:
        problem = f"it is not JSON ({error})"
    return {
        "schema": schema,
        "verdict": "unknown",
        "passed": False,
        "reasons": [f"the output of `busbar {command}` cannot be read: {problem}"],
    }
