"""A measurement beside work (`validation.when_busy`): a pod of somebody else holds a GPU of worker-1."""

import json
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from busbar.outputs import ClusterOutputs
from busbar.outputs.contract import PoolResult
from tests.support.lab import PROJECT, Lab, eventually, gpu_holder

pytestmark = pytest.mark.drill

HELD = "worker-1: 1 of 2 nvidia.com/gpu are free, held by default/training (1)"


def up(lab: Lab, run: int, policy: str) -> tuple[bool, str]:
    """An update with these values of the validation: whether it succeeded, and what it printed."""

    def change(cluster: dict[str, Any]) -> None:
        cluster["validation"].update(run=run, when_busy=policy)

    done = lab.up("--config-file", str(lab.config_with(change)))
    print(done.stdout, done.stderr)
    return done.returncode == 0, " ".join((done.stdout + done.stderr).split())


def result(lab: Lab) -> PoolResult:
    return ClusterOutputs.from_dict(lab.outputs()).nccl["lab"]


def begin(lab: Lab) -> None:
    lab.apply(gpu_holder("worker-1"))
    lab.kubectl("wait --for=condition=Ready pod/training --timeout=60s")


def end(lab: Lab) -> None:
    lab.kubectl("delete pod training --ignore-not-found")


def jobs(lab: Lab) -> dict[str, dict[str, Any]]:
    """The MPIJobs by uid."""
    found = json.loads(lab.kubectl("get mpijobs -A -o json"))["items"]
    return {each["metadata"]["uid"]: each for each in found}


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Lab]:
    yield lab
    end(lab)
    assert lab.up().returncode == 0


def test_the_update_that_sets_keep_measures_nothing(site: Lab) -> None:
    before, measured_at = set(jobs(site)), result(site).measured_at
    succeeded, text = up(site, 1, "keep")
    assert succeeded, text
    assert set(jobs(site)) == before
    assert (result(site).measured_at, result(site).stale) == (measured_at, None)


def test_keep_leaves_the_former_verdict_and_the_gpus(site: Lab) -> None:
    measured_at = result(site).measured_at
    begin(site)
    succeeded, text = up(site, 2, "keep")
    assert succeeded, text
    assert HELD in text
    found = result(site)
    assert (found.verdict, found.measured_at, found.stale) == ("pass", measured_at, ("run 1 -> 2",))
    assert found.nodes_measured == ("worker-1", "worker-2")
    assert "Running" in site.kubectl("get pod training")
    [job] = jobs(site).values()
    assert job["spec"]["runPolicy"]["suspend"] is True
    own = f"training.kubeflow.org/job-name={job['metadata']['name']}"
    eventually(lambda: site.kubectl(f"get pods -A -l {own} -o name") == "", 30, "no pod of the job is left")


def test_a_verdict_that_was_kept_is_kept_again_where_the_folder_is_lost(site: Lab) -> None:
    shutil.rmtree(PROJECT / ".busbar" / "dev" / "lab")
    measured_at = result(site).measured_at
    succeeded, text = up(site, 3, "keep")
    assert succeeded, text
    assert (result(site).measured_at, result(site).stale) == (measured_at, ("run 1 -> 3",))


def test_wait_measures_when_the_pod_has_ended(site: Lab) -> None:
    measured_at = result(site).measured_at
    timer = threading.Timer(90, end, [site])
    timer.start()
    succeeded, text = up(site, 4, "wait")
    timer.join()
    assert succeeded, text
    assert HELD in text
    assert measured_at is not None
    found = result(site)
    assert found.measured_at is not None and found.measured_at > measured_at
    assert found.stale is None
