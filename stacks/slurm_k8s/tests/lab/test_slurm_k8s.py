"""Slurm on the lab's cluster: what users do with it, and its update and measurement.

The tests are one story, in this order.
"""

import json
import time

import pytest

from stacks.slurm_k8s.tests.lab.conftest import BUSBAR, NODES, SLURM, STACK, Slurm, until
from tests.support.lab import Lab, gpu_holder

pytestmark = pytest.mark.drill


def test_the_update_ends_with_every_worker_in_slurm_and_a_job_on_all_gpus(
    lab: Lab, slurm: Slurm, printed: str
) -> None:
    assert "PASS  2 nodes are in Slurm, and jobs get their GPUs" in printed
    outputs = lab.outputs(SLURM)
    assert set(outputs["slurm_nodes"]) == NODES
    assert outputs["slurm_partitions"] == {"lab": "gpu:h100:2"}
    assert set(slurm.nodes().values()) == {"idle"}


def test_an_update_without_changes_changes_nothing(lab: Lab, printed: str) -> None:
    done = lab.up("--expect-no-changes", cwd=SLURM)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_of_a_user_runs_on_the_gpus_of_both_nodes(slurm: Slurm) -> None:
    said = slurm(
        "srun -N2 --ntasks-per-node=1 --gpus-per-node=2 sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'"
    )
    assert sorted(said.splitlines()) == [f"{node} 0,1" for node in sorted(slurm.on().values())]


def test_a_pod_outside_slurm_gets_no_gpu_and_the_core_s_measurement_names_who_has_them(
    lab: Lab, printed: str
) -> None:
    lab.apply(gpu_holder("worker-1"))
    try:
        time.sleep(5)
        assert lab.kubectl("get pod training -o 'jsonpath={.status.phase}'") == "Pending"
    finally:
        lab.kubectl("delete pod training --wait=false")
    done = lab.run(*BUSBAR, "measure", "dev")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "held by slurm/slurm-worker-lab-" in done.stdout + done.stderr
    assert "[measure with `busbar measure STACK --project stacks/slurm_k8s`]" in done.stdout + done.stderr


def test_busbar_measure_runs_nccl_tests_by_sbatch_and_judges_the_log(lab: Lab, printed: str) -> None:
    started = time.monotonic()
    done = lab.run(*BUSBAR, "measure", *STACK)
    print(done.stdout, done.stderr, f"measured after {time.monotonic() - started:.1f} s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout and "all_reduce" in done.stdout
    history = lab.run(*BUSBAR, "history", *STACK, "--json")
    runs = json.loads(history.stdout)["runs"]
    # That of the update, and this one.
    assert [each["result"]["verdict"] for each in runs[:2]] == ["pass", "pass"]


def test_a_job_is_queued_again_when_its_slurmd_s_pod_is_deleted(lab: Lab, slurm: Slurm) -> None:
    node = slurm.on()["worker-1"]
    job = slurm.submit("sleep 20", "-N1", f"--nodelist={node}", "--gpus-per-node=2", "--requeue")
    until(lambda: slurm.state(job) == "RUNNING", 30, "job runs")
    lab.kubectl(f"delete pod slurm-worker-{node} -n slurm --wait=false")
    until(lambda: slurm.state(job) == "PENDING", 30, "job is pending")
    taken = until(lambda: slurm.state(job) == "RUNNING", 100, "job runs again")
    print(f"job {job} ran again after {taken:.0f} s")
    until(lambda: slurm.state(job) == "COMPLETED", 60, "job has completed")
