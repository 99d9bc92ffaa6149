"""stacks/slurm_k8s on the lab's cluster: the real operator, and Slurm 26.05 of Debian's packages in its pods.

The tests are one story, in this order. What it does not prove: operator 1.2, cgroup v2, real GPUs
and HCAs, pmix, pyxis.
"""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.lab import PROJECT, Lab, eventually, gpu_holder

pytestmark = pytest.mark.drill

SLURM = PROJECT / "stacks" / "slurm_k8s"
NODES = {"worker-1", "worker-2"}
# With the operator and the images to be built.
FIRST_SECONDS = 3000
BUSBAR = (sys.executable, "-m", "busbar")
STACK = ("dev", "--project", str(SLURM))


class Slurm:
    """Slurm's commands, as a user in the login pod has them."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def __call__(self, command: str) -> str:
        words = f"exec -n slurm deploy/slurm-login-slinky -c login -- sh -c {shlex.quote(command)}"
        return self.lab.kubectl(words).strip()

    def submit(self, script: str, *options: str) -> str:
        """The number of a job with this script."""
        encoded = base64.b64encode(f"#!/bin/sh\n{script}\n".encode()).decode()
        words = " ".join(["sbatch --parsable --chdir=/tmp --output=/dev/null", *options])
        return self(f"echo {encoded} | base64 -d | {words}")

    def state(self, job: str) -> str:
        return self(f"scontrol --oneliner show job {job} | sed 's/.* JobState=//; s/ .*//'")

    def nodes(self) -> dict[str, str]:
        """Node of Slurm -> its state."""
        return dict(line.split() for line in self("sinfo -h -N -o '%N %T'").splitlines())

    def on(self) -> dict[str, str]:
        """Worker -> its node of Slurm."""
        found = self.lab.outputs(SLURM)["slurm_nodes"]
        assert isinstance(found, dict)
        return found


def until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    started = time.monotonic()
    eventually(condition, seconds, what)
    return time.monotonic() - started


@pytest.fixture(scope="module")
def printed(lab: Lab) -> Iterator[str]:
    """What `make up-slurm_k8s` printed. Only the namespace with slurmctld's volume is left afterwards."""
    before = set(lab.kubectl("get namespaces,crd -o name").split())
    done = lab.run(sys.executable, "-m", "lab", "bringup", "slurm_k8s", seconds=FIRST_SECONDS)
    print(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    yield done.stdout
    started = time.monotonic()
    destroyed = lab.run(*BUSBAR, "destroy", *STACK, "--yes", seconds=300)
    assert destroyed.returncode == 0, destroyed.stdout + destroyed.stderr
    print(f"destroyed after {time.monotonic() - started:.1f} s")
    after = set(lab.kubectl("get namespaces,crd -o name").split())
    assert after - before <= {"namespace/slurm"}
    assert not [each for each in after if "slinky" in each]
    assert lab.kubectl("get pods -n slurm -o name").split() == []
    [claim] = lab.kubectl("get pvc -n slurm -o name").split()
    assert claim.endswith("/statesave-slurm-controller-0")


@pytest.fixture
def slurm(lab: Lab, printed: str) -> Slurm:
    return Slurm(lab)


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
    [entry] = json.loads(history.stdout)["runs"]
    assert entry["result"]["verdict"] == "pass"


def test_a_destroy_is_refused_while_a_job_runs_and_removes_nothing(lab: Lab, slurm: Slurm) -> None:
    job = slurm.submit("sleep 300", "-N1")
    until(lambda: slurm.state(job) == "RUNNING", 30, "job runs")
    done = lab.run(*BUSBAR, "destroy", *STACK, "--yes", seconds=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"jobs of Slurm are running or pending: {job}; nothing was removed" in done.stdout + done.stderr
    assert slurm.state(job) == "RUNNING"
    slurm(f"scancel {job}")
    up = lab.up(cwd=SLURM)
    assert up.returncode == 0, up.stdout + up.stderr


def test_jobs_run_on_while_slurmctld_s_pod_is_replaced(lab: Lab, slurm: Slurm) -> None:
    job = slurm.submit("sleep 45", "-N2", "--gpus-per-node=2")
    until(lambda: slurm.state(job) == "RUNNING", 30, "job runs")
    # Slurm writes its state at most 5 s later.
    time.sleep(12)
    lab.kubectl("delete pod slurm-controller-0 -n slurm")

    def ended() -> bool:
        try:
            return slurm.state(job) == "COMPLETED"
        except AssertionError:  # slurmctld is away
            return False

    until(ended, 120, f"job {job} has completed")


def test_a_job_is_queued_again_when_its_slurmd_s_pod_is_deleted(lab: Lab, slurm: Slurm) -> None:
    node = slurm.on()["worker-1"]
    job = slurm.submit("sleep 20", "-N1", f"--nodelist={node}", "--gpus-per-node=2", "--requeue")
    until(lambda: slurm.state(job) == "RUNNING", 30, "job runs")
    lab.kubectl(f"delete pod slurm-worker-{node} -n slurm --wait=false")
    until(lambda: slurm.state(job) == "PENDING", 30, "job is pending")
    taken = until(lambda: slurm.state(job) == "RUNNING", 100, "job runs again")
    print(f"job {job} ran again after {taken:.0f} s")
    until(lambda: slurm.state(job) == "COMPLETED", 60, "job has completed")


def test_busbar_drain_lets_a_young_job_end_and_gives_slurm_the_reason(lab: Lab, slurm: Slurm) -> None:
    on = slurm.on()["worker-2"]
    job = slurm.submit("sleep 25", "-N1", f"--nodelist={on}", "--gpus-per-node=2")
    until(lambda: slurm.state(job) == "RUNNING", 30, "job runs")
    time.sleep(5)
    words = [*BUSBAR, "drain", "dev", "worker-2", "--reason", "fan 3"]
    with subprocess.Popen(
        words, cwd=PROJECT, env=lab.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as drain:
        until(lambda: "fan 3" in slurm("sinfo -h -R -o %E"), 30, "the reason is in Slurm")
        said, _ = drain.communicate(timeout=120)
    print(said)
    assert drain.returncode == 0, said
    assert slurm.state(job) == "COMPLETED"
    assert "slurm-operator: busbar: fan 3" in slurm("sinfo -h -R -o %E") or on not in slurm.nodes()
    back = lab.run(*BUSBAR, "uncordon", "dev", "worker-2")
    assert back.returncode == 0, back.stdout + back.stderr
    taken = until(lambda: [*slurm.nodes().values()] == ["idle", "idle"], 90, "both nodes are idle")
    print(f"idle after {taken:.0f} s")
