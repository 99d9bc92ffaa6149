"""Every example on the lab's cluster: it ends well, on both workers, with a loss that fell.

The controllers and DeepSpeed are the real ones. The ranks are CPU processes that use gloo over TCP, in pods
with the simulated devices of the lab.
"""

import functools
import re
from collections.abc import Iterator

import pytest

from stacks.training.tests.lab.jobs.conftest import JOB_SECONDS, NAMESPACE, Jobs, cluster_wide
from stacks.training.tests.lab.jobs.examples import EXAMPLES, FOLDER, adapted
from tests.support.lab import eventually

pytestmark = pytest.mark.drill

JOBSET = "jobset.sigs.k8s.io/jobset-name"
V1 = "training.kubeflow.org/job-name"
# The file, its condition at the end, the labels of its pods, and its checkpoint below FOLDER.
RUNS = {
    "trainjob.yaml": ("Complete", f"{JOBSET}=example", None),
    "deepspeed.yaml": ("Complete", f"{JOBSET}=deepspeed", "deepspeed/latest"),
    "mpijob.yaml": ("Succeeded", f"{V1}=mpi", "mpi/checkpoint.pt"),
    "pytorchjob.yaml": ("Succeeded", f"{V1}=pytorch", "pytorch/checkpoint.pt"),
}
# Helm does not remove what a chart has in its folder `crds`.
LEFT = {
    "customresourcedefinition.apiextensions.k8s.io/jobsets.jobset.x-k8s.io",
    "apiservice.apiregistration.k8s.io/v1alpha2.jobset.x-k8s.io",
}
LOSS = re.compile(r"step (\d+) of (\d+), (\d+) ranks: loss ([0-9.]+)")


def test_every_example_is_run_here() -> None:
    assert {*RUNS, "elastic.yaml"} == {path.name for path in EXAMPLES.glob("*.yaml")}


@pytest.fixture
def alone(jobs: Jobs) -> Iterator[Jobs]:
    """No other job has the devices, before and after."""
    yield jobs
    for kind in ("trainjob", "mpijob", "pytorchjob"):
        jobs.lab.kubectl(f"-n {NAMESPACE} delete {kind} --all --timeout=120s")
    eventually(lambda: jobs.get("pods")["items"] == [], 120, "the pods of the job are gone")


@pytest.mark.parametrize("name", RUNS)
def test_an_example_ends_well_with_all_ranks_and_a_loss_that_fell(alone: Jobs, name: str) -> None:
    done, labels, checkpoint = RUNS[name]
    nodes: set[str] = set()
    job = adapted(name)
    alone.apply(job)
    eventually(lambda: len(_nodes(alone, labels, nodes)) == 2, JOB_SECONDS, "the job has both workers")
    alone.wait(job, done)
    losses = [match.groups() for match in LOSS.finditer(alone.log(f"-l {labels}"))]
    last_step, steps, ranks, last_loss = losses[-1]
    assert (last_step, ranks) == (steps, "4")
    assert float(last_loss) < float(losses[0][3]) / 100
    if checkpoint:
        assert int(alone.lab.ssh("worker-2", f"stat -c %s {FOLDER}/{checkpoint}")) > 0


def test_the_elastic_job_takes_another_worker_while_it_runs_and_resumes(alone: Jobs) -> None:
    job = adapted("elastic.yaml")
    job["spec"]["elasticPolicy"].update(minReplicas=1, maxReplicas=2)
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["containers"][0]["command"].append(str(10**9))
    worker["replicas"] = 1
    alone.apply(job)
    log = functools.partial(alone.log, f"-l {V1}=elastic")
    eventually(lambda: ", 2 ranks: loss" in log(), JOB_SECONDS, "the ranks of one worker train")
    worker["replicas"] = 2
    alone.apply(job)
    eventually(lambda: ", 4 ranks: loss" in log(), JOB_SECONDS, "those of two workers train")
    resumed = re.search(r"resumed after step (\d+) with 4 ranks", log())
    assert resumed is not None and int(resumed[1]) > 0


def test_a_destroy_leaves_a_running_job_and_then_the_cluster_and_the_data_as_they_were(jobs: Jobs) -> None:
    jobs.lab.ssh("worker-1", f"touch {FOLDER}/kept")
    job = adapted("trainjob.yaml")
    job["spec"]["trainer"]["command"] = ["sleep", "infinity"]
    jobs.apply(job)
    eventually(lambda: len(_nodes(jobs, f"{JOBSET}=example", set())) == 2, JOB_SECONDS, "the job runs")
    assert jobs.destroy() != 0
    assert len(jobs.pods(f"{JOBSET}=example")) == 2
    jobs.lab.kubectl(f"-n {NAMESPACE} delete trainjob example --timeout=120s")
    assert jobs.destroy() == 0
    assert cluster_wide(jobs.lab) - LEFT == jobs.before - LEFT
    assert "kept" in jobs.lab.ssh("worker-2", f"ls {FOLDER}").split()


def _nodes(jobs: Jobs, labels: str, seen: set[str]) -> set[str]:
    """The nodes on which pods of the job ran so far."""
    seen |= {pod["spec"]["nodeName"] for pod in jobs.pods(labels) if pod["spec"].get("nodeName")}
    return seen
