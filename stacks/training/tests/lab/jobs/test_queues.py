"""Kueue's own controller on the lab's cluster: a job starts when all its GPUs are free, or not at all.

The pool `lab` has two workers of two GPUs. A job here holds whole workers and waits for a file, so that what
is admitted, and when, does not depend on the machine's speed. The last test removes the stack.
"""

from __future__ import annotations

from typing import Any

import pytest

from stacks.training.tests.lab.jobs.conftest import NAMESPACE, Jobs, cluster_wide
from stacks.training.tests.lab.jobs.examples import FOLDER
from tests.support.lab import eventually

pytestmark = pytest.mark.drill

QUEUE = "lab"
END = "/tmp/end"
SECONDS = 120
# Helm does not remove what a chart has in its folder `crds`.
LEFT = {
    "customresourcedefinition.apiextensions.k8s.io/jobsets.jobset.x-k8s.io",
    "apiservice.apiregistration.k8s.io/v1alpha2.jobset.x-k8s.io",
}


def holding(name: str, workers: int) -> dict[str, Any]:
    """A TrainJob that holds whole workers until each of its pods has the file END."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}},
        "spec": {
            "runtimeRef": {"name": "busbar-torch-lab"},
            "trainer": {
                "numNodes": workers,
                "command": ["/bin/sh", "-c", f"until [ -e {END} ]; do sleep 1; done"],
            },
        },
    }


def workload(jobs: Jobs, job: str) -> dict[str, Any]:
    """Kueue's Workload of a TrainJob, or an empty one while there is none."""
    for each in jobs.get("workloads.kueue.x-k8s.io")["items"]:
        if any(owner["name"] == job for owner in each["metadata"].get("ownerReferences") or []):
            assert isinstance(each, dict)
            return each
    return {}


def reserved(jobs: Jobs, job: str) -> dict[str, Any]:
    """The condition QuotaReserved of the Workload."""
    conditions = (workload(jobs, job).get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == "QuotaReserved"), {})


def pods(jobs: Jobs, job: str) -> list[dict[str, Any]]:
    return jobs.pods(f"jobset.sigs.k8s.io/jobset-name={job}")


def running(jobs: Jobs, job: str) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in pods(jobs, job))


def end(jobs: Jobs, job: str) -> None:
    for pod in pods(jobs, job):
        jobs.lab.kubectl(f"-n {NAMESPACE} exec {pod['metadata']['name']} -- touch {END}")


def test_the_queue_of_the_pool_is_active_with_the_gpus_of_its_workers(jobs: Jobs) -> None:
    queue = jobs.get(f"clusterqueues.kueue.x-k8s.io busbar-{QUEUE}")
    [group] = queue["spec"]["resourceGroups"]
    quota = {each["name"]: each["nominalQuota"] for each in group["flavors"][0]["resources"]}
    assert quota["nvidia.com/gpu"] == "4"
    eventually(
        lambda: jobs.conditions(f"clusterqueues.kueue.x-k8s.io/busbar-{QUEUE}").get("Active") == "True",
        SECONDS,
        "Kueue has taken the queue",
    )


def test_a_job_that_fits_runs_and_one_that_does_not_is_held_as_a_whole_until_then(jobs: Jobs) -> None:
    jobs.apply(holding("first", workers=1))
    eventually(lambda: running(jobs, "first") == 1, SECONDS, "the job that fits runs")
    assert reserved(jobs, "first")["status"] == "True"

    # One of its pods would find a free worker.
    jobs.apply(holding("second", workers=2))
    eventually(
        lambda: "nvidia.com/gpu" in reserved(jobs, "second").get("message", ""), SECONDS, "Kueue says why"
    )
    assert reserved(jobs, "second")["status"] == "False"
    assert jobs.get("trainjob second")["spec"]["suspend"] is True
    assert pods(jobs, "second") == []

    end(jobs, "first")
    eventually(lambda: running(jobs, "second") == 2, SECONDS, "the job that was held runs as a whole")
    assert jobs.conditions("trainjob/first")["Complete"] == "True"
    end(jobs, "second")
    eventually(lambda: jobs.conditions("trainjob/second").get("Complete") == "True", SECONDS, "and it ends")


def test_a_job_that_names_no_queue_is_left_alone(jobs: Jobs) -> None:
    job = holding("unqueued", workers=1)
    del job["metadata"]["labels"]
    jobs.apply(job)
    eventually(lambda: running(jobs, "unqueued") == 1, SECONDS, "it runs")
    assert workload(jobs, "unqueued") == {}
    jobs.lab.kubectl(f"-n {NAMESPACE} delete trainjob unqueued --timeout=120s")
    eventually(lambda: pods(jobs, "unqueued") == [], SECONDS, "its pods are gone")


def test_a_destroy_leaves_the_cluster_and_the_data_as_they_were(jobs: Jobs) -> None:
    jobs.lab.ssh("worker-1", f"touch {FOLDER}/kept")
    # A job that was held, and one that runs, go with the namespace.
    jobs.apply(holding("runs", workers=2), holding("held", workers=1))
    eventually(lambda: running(jobs, "runs") == 2, SECONDS, "one job runs")
    eventually(lambda: reserved(jobs, "held").get("status") == "False", SECONDS, "another one is held")
    assert jobs.destroy() == 0
    assert cluster_wide(jobs.lab) - LEFT == jobs.before - LEFT
    assert "kept" in jobs.lab.ssh("worker-2", f"ls {FOLDER}").split()
