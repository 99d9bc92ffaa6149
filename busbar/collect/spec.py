"""stdin of a command that collects from a job in a cluster: which job, and what it must show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from busbar.config.cluster import NcclSettings
from busbar.judge.archive import JOB, Settings
from busbar.judge.nccl.expected import JUDGE
from busbar.manifests.names import short
from busbar.manifests.nccljob import NcclJob
from busbar.manifests.ncclrun import NcclRun
from busbar.models import StrictModel

# The collector waits this much longer: the controller has to record a job that ended at its own deadline.
GRACE_SECONDS = 60
# Fields of the expectation that follow from the Nodes.
_OF_THE_NODES = {"nodes", "hosts", "reasoning"}


class JobSpec(StrictModel):
    """The job to collect. The spec of a gate adds the expectation that it is judged by."""

    namespace: str
    job: str = Field(description="Its name.")
    folder: str = Field(description="Where log, verdict and report are kept, relative to the project.")
    deadline_seconds: float = Field(gt=0)


class CollectSpec(JobSpec):
    """An MPIJob of nccl-tests. With another version of the judge the kept log is judged again."""

    expectation: dict[str, Any] = Field(description="See busbar.judge.nccl.Expectation.")
    judge: int = Field(default=JUDGE, description="Version of the judge.")


def collect_spec(validation: NcclSettings, job: NcclJob, job_name: str, *, folder: str) -> dict[str, Any]:
    """The spec of one pool's measurement, as plain JSON values."""
    return CollectSpec(
        namespace=job.namespace,
        job=job_name,
        folder=folder,
        deadline_seconds=job.deadline_seconds + GRACE_SECONDS,
        expectation=expectation(validation, job, job_name),
    ).model_dump(mode="json")


def expectation(validation: NcclSettings, run: NcclRun, job_name: str) -> dict[str, Any]:
    """The expectation that the run is judged by, as JSON values."""
    return {
        "accept_warnings": list(validation.accept_warnings),
        "nodes": len(run.nodes),
        "gpus_per_node": run.slots_per_worker,
        "gpu": run.gpu,
        "rails": run.rails,
        "rate_gbps": run.rate_gbps,
        "transport": run.transport,
        "algorithm": run.algorithm,
        "collectives": list(run.collectives),
        "min_bytes": run.min_bytes,
        "max_bytes": run.max_bytes,
        "step_factor": run.step_factor,
        "expected_busbw_gbps": validation.expected_busbw_gbps,
        "expected_by_collective": dict(validation.expected_by_collective),
        "tolerance": validation.tolerance,
        "profile": validation.profile,
        "topology_file": run.env.get("NCCL_TOPO_FILE"),
        "hcas": list(validation.hcas),
        "hosts": [f"{job_name}-worker-{index}" for index in range(len(run.nodes))],
    }


def settings_of(
    job: Mapping[str, Any],
    expectation: Mapping[str, Any],
    iterations: int | None = None,
    warmup: int | None = None,
) -> Settings:
    """The settings that an MPIJob of busbar measures with, by name, and the expectation of its verdict.

    `iterations` and `warmup` are in its launcher's script only: give those asked for, or those of the log.
    """
    replicas, annotations = job["spec"]["mpiReplicaSpecs"], job["metadata"].get("annotations") or {}
    worker = replicas["Worker"]["template"]["spec"]
    [container] = worker["containers"]
    [launcher] = replicas["Launcher"]["template"]["spec"]["containers"]
    found: dict[str, Any] = {
        **json.loads(annotations.get("busbar/versions") or "{}"),
        JOB: job["metadata"]["name"],
        "run": annotations.get("busbar/run"),
        "image": container["image"],
        **container["resources"]["limits"],
        "shm_size": worker["volumes"][0]["emptyDir"]["sizeLimit"],
        "runtime_class": worker.get("runtimeClassName"),
        "tolerations": worker["tolerations"],
        "deadline_seconds": job["spec"]["runPolicy"]["activeDeadlineSeconds"],
        "topology": short(annotations.get("busbar/topology-sha256", "")),
        "iterations": iterations,
        "warmup": warmup,
        **{f"env {each['name']}": each["value"] for each in launcher.get("env") or ()},
    }
    return settings_with(expectation, found)


def settings_with(expectation: Mapping[str, Any], more: Mapping[str, Any]) -> Settings:
    """The settings of a measurement as texts: those of its EXPECTATION, and MORE."""
    found = {**{key: value for key, value in expectation.items() if key not in _OF_THE_NODES}, **more}
    return {
        key: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for key, value in found.items()
        if value not in (None, "", [], {}, False)
    }
