"""Drains with a job of 5 s: slurm-operator itself protects a pod with a job only after up to 30 s."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from busbar.kube.client import KUBECONFIG_TEXT
from stacks.slurm_k8s.tests.lab.conftest import BUSBAR, Slurm, until
from tests.support.lab import PROJECT, Lab

pytestmark = pytest.mark.drill

IDLE = ["idle", "idle"]


@contextmanager
def running(lab: Lab, *words: str, stdin: str = "", **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs meanwhile."""
    with subprocess.Popen(
        words,
        cwd=PROJECT,
        env={**lab.environment, **variables},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdin
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
        yield process


def up_with(lab: Lab, change: Callable[[dict[str, Any]], None]) -> tuple[str, ...]:
    """The command of an update of the cluster with a changed configuration."""
    file = str(lab.config_with(change))
    words = ("pulumi", "up", "--yes", "--skip-preview", "--suppress-progress", "--non-interactive")
    return (*words, "--stack", "dev", "--config-file", file)


def back(lab: Lab, slurm: Slurm, *hosts: str) -> None:
    """Update with the usual configuration, also these hosts again, and wait until both nodes are idle."""
    done = lab.run(*BUSBAR, "up", "dev", "--yes", "--converge", *hosts, seconds=900) if hosts else lab.up()
    assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: [*slurm.nodes().values()] == IDLE, 90, "both nodes are idle")


def ended_well(slurm: Slurm, process: subprocess.Popen[str], job: str, reason: str) -> None:
    """The reason reaches Slurm, the command succeeds, and the job has completed in its first run."""
    until(lambda: reason in slurm.reasons, 90, f"the reason is in Slurm: {reason}")
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    until(lambda: slurm.has_ended_well(job), 60, "the job has completed")


@pytest.fixture(autouse=True)
def back_in_use(lab: Lab) -> Iterator[None]:
    """A drill that fails leaves no node out for the next one."""
    yield
    lab.run(*BUSBAR, "uncordon", "dev", "worker-2")


def test_busbar_drain(lab: Lab, slurm: Slurm) -> None:
    job = slurm.young_job(slurm.on()["worker-2"])
    with running(lab, *BUSBAR, "drain", "dev", "worker-2", "--reason", "fan 3") as drain:
        ended_well(slurm, drain, job, "busbar: fan 3")
    done = lab.run(*BUSBAR, "uncordon", "dev", "worker-2")
    assert done.returncode == 0, done.stdout + done.stderr
    taken = until(lambda: [*slurm.nodes().values()] == IDLE, 90, "both nodes are idle")
    print(f"idle after {taken:.0f} s")


def test_a_drain_that_is_given_up_leaves_the_node_idle(lab: Lab, slurm: Slurm) -> None:
    job = slurm.young_job(slurm.on()["worker-2"], seconds=60)
    with running(lab, *BUSBAR, "drain", "dev", "worker-2", "--reason", "fan 4") as drain:
        try:
            until(lambda: "busbar: fan 4" in slurm.reasons, 50, "the reason is in Slurm")
        finally:
            drain.terminate()
            drain.communicate(timeout=60)
            done = lab.run(*BUSBAR, "uncordon", "dev", "worker-2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fan 4" not in slurm.reasons
    until(lambda: slurm.has_ended_well(job), 90, "the job has completed")
    until(lambda: [*slurm.nodes().values()] == IDLE, 30, "both nodes are idle")


def test_a_quarantine(lab: Lab, slurm: Slurm) -> None:
    def kept(cluster: dict[str, Any]) -> None:
        # By default a measurement waits three minutes for the GPUs, which the pods of Slurm hold.
        cluster["validation"]["when_busy"] = "keep"

    def held(cluster: dict[str, Any]) -> None:
        kept(cluster)
        cluster["hosts"]["workers"][1]["quarantine"] = "drill: rail 0 is slow"

    job = slurm.young_job(slurm.on()["worker-2"])
    with running(lab, *up_with(lab, held)) as up:
        ended_well(slurm, up, job, "busbar: quarantine: drill: rail 0 is slow")
    with running(lab, *up_with(lab, kept)) as up:
        said, _ = up.communicate(timeout=300)
    assert up.returncode == 0, said
    until(lambda: [*slurm.nodes().values()] == IDLE, 60, "both nodes are idle")


def test_a_restart_of_k3s_that_drains(lab: Lab, slurm: Slurm) -> None:
    def restarted(cluster: dict[str, Any]) -> None:
        cluster["pools"]["lab"] |= {"drain": "always", "pause_seconds": 0}
        cluster["k3s"]["agent_args"] = {"kubelet-arg": ["max-pods=109"]}

    on = slurm.on()["worker-1"]
    with running(lab, *up_with(lab, restarted)) as up:
        job = slurm.young_job(on)
        ended_well(slurm, up, job, "busbar: restart of K3s")
    until(lambda: [*slurm.nodes().values()] == IDLE, 90, "both nodes are idle")
    back(lab, slurm)


def test_the_removal_of_a_worker(lab: Lab, slurm: Slurm) -> None:
    words = (*BUSBAR, "remove", "nodes")
    spec = json.dumps({"workers": ["worker-1"]})
    kubeconfig = lab.pulumi("stack", "output", "kubeconfig", "--show-secrets", "--stack", "dev").stdout
    job = slurm.young_job(slurm.on()["worker-2"])
    with running(lab, *words, stdin=spec, **{KUBECONFIG_TEXT: kubeconfig}) as removal:
        ended_well(slurm, removal, job, "busbar: removed from the cluster")
    assert "worker-2" not in lab.kubectl("get nodes -o name")
    back(lab, slurm, "worker-2")
