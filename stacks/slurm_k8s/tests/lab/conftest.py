"""Slurm on the lab's cluster: the real operator, and Slurm 26.05 of Debian's packages in its pods.

The operator is 1.0, or the release that BUSBAR_LAB_SLURM_OPERATOR names. What it does not prove: cgroup v2,
real GPUs and HCAs, pmix, pyxis.
"""

import base64
import shlex
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.lab import PROJECT, Lab, eventually

SLURM = PROJECT / "stacks" / "slurm_k8s"
NODES = {"worker-1", "worker-2"}
WORKERS = " ".join(sorted(NODES))
LOGIN = "rollout status -n slurm deploy/slurm-login-slinky --timeout=90s"
# With the operator and the images to be built.
FIRST_SECONDS = 3000
BUSBAR = (sys.executable, "-m", "busbar")
STACK = ("dev", "--project", str(SLURM))


class Slurm:
    """Slurm's commands, as a user in the login pod has them."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def __call__(self, command: str) -> str:
        self.lab.kubectl(LOGIN)
        words = f"exec -n slurm deploy/slurm-login-slinky -c login -- sh -c {shlex.quote(command)}"
        return self.lab.kubectl(words).strip()

    def submit(self, script: str, *options: str) -> str:
        """The number of a job with this script."""
        encoded = base64.b64encode(f"#!/bin/sh\n{script}\n".encode()).decode()
        words = " ".join(["sbatch --parsable --chdir=/tmp --output=/dev/null", *options])
        return self(f"echo {encoded} | base64 -d | {words}")

    def state(self, job: str) -> str:
        return self(f"scontrol --oneliner show job {job} | sed 's/.* JobState=//; s/ .*//'")

    def young_job(self, on: str, seconds: int = 45) -> str:
        """A job on all GPUs of a node, 5 s old."""
        job = self.submit(f"sleep {seconds}", "-N1", f"--nodelist={on}", "--gpus-per-node=2")
        until(lambda: self.state(job) == "RUNNING", 30, "job runs")
        time.sleep(5)
        return job

    def has_ended_well(self, job: str) -> bool:
        """Whether a job has completed in its first run."""
        found = self(f"scontrol --oneliner show job {job}")
        return "JobState=COMPLETED" in found and "Restarts=0" in found

    @property
    def reasons(self) -> str:
        """Why Slurm starts no jobs on nodes."""
        return self("sinfo -h -R -o %E")

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


@pytest.fixture(scope="session")
def printed(lab: Lab) -> Iterator[str]:
    """What `make up-slurm_k8s` printed. Only the namespace with slurmctld's volume is left afterwards."""
    before = set(lab.kubectl("get namespaces,crd -o name").split())
    done = lab.run(sys.executable, "-m", "lab", "bringup", "slurm_k8s", seconds=FIRST_SECONDS)
    print(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    # The drills ask from the login pod, which a drain of its node would move.
    lab.kubectl(f"taint nodes {WORKERS} drill=login:NoSchedule")
    lab.kubectl("delete pod -n slurm -l app.kubernetes.io/component=login")
    lab.kubectl(f"{LOGIN}; k3s kubectl taint nodes {WORKERS} drill=login:NoSchedule-")
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
