"""An administrator's changes in Slurm stay, and a user's jobs are not ended without a word.

The drills are one story, in this order.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from stacks.slurm_k8s.tests.lab.conftest import BUSBAR, STACK, Slurm, until
from stacks.slurm_k8s.tests.lab.test_slurm_k8s_updates import config_with, images, updated
from tests.support.lab import Lab

pytestmark = pytest.mark.drill

DOWN = "smoke, do not touch"
DRAIN = "busbar: update of the BIOS, ticket 9"
SECONDS = 300


def other_memory(config: dict[str, Any]) -> None:
    """A change of slurm.conf alone, which slurmctld reads in place."""
    config["slurm_conf"]["DefMemPerCPU"] = "120"


def other_weight(config: dict[str, Any]) -> None:
    """A change of the pod template, which replaces every pod of slurmd."""
    config["values"]["nodesets"] = {"lab": {"metadata": {"labels": {"drill": "administrators"}}}}


def held(slurm: Slurm) -> dict[str, str]:
    """Node -> its reason."""
    lines = slurm("sinfo -h -N -o '%N|%E'").splitlines()
    return dict(line.split("|", 1) for line in lines)


def test_a_down_and_a_drain_by_a_person_outlive_the_pods(lab: Lab, slurm: Slurm) -> None:
    first, second = sorted(slurm.nodes())
    slurm(f"scontrol update nodename={first} state=down reason='{DOWN}'")
    slurm(f"scontrol update nodename={second} state=drain reason='{DRAIN}'")
    before = set(lab.kubectl("get pods -n slurm -l app.kubernetes.io/component=worker -o name").split())
    assert images(lab)
    try:
        updated(lab, *config_with(lab, other_weight))
        after = set(lab.kubectl("get pods -n slurm -l app.kubernetes.io/component=worker -o name").split())
        assert before == after
        assert slurm.nodes()[first].startswith("down"), slurm.nodes()
        assert slurm.nodes()[second].startswith("drain"), slurm.nodes()
        assert held(slurm) == {first: DOWN, second: DRAIN}
    finally:
        for node in (first, second):
            slurm(f"scontrol update nodename={node} state=resume")
    updated(lab)


def test_a_closed_partition_stays_closed_through_a_changed_slurm_conf(lab: Lab, slurm: Slurm) -> None:
    slurm("scontrol update partitionname=lab state=down")
    job = slurm.submit("true", "-p lab")
    try:
        updated(lab, *config_with(lab, other_memory))
        assert slurm("sinfo -h -p lab -o %a").split()[0] == "down"
        assert slurm.state(job) == "PENDING"
    finally:
        slurm("scontrol update partitionname=lab state=up")
    until(lambda: slurm.state(job) == "COMPLETED", SECONDS, "the job has ended")
    updated(lab)


def test_jobs_go_on_while_the_pod_of_slurmctld_is_deleted(lab: Lab, slurm: Slurm) -> None:
    job = slurm.young_job(sorted(slurm.nodes())[0], 60)
    lab.kubectl("delete pod -n slurm slurm-controller-0")
    until(lambda: slurm.has_ended_well(job), SECONDS, "the job has ended in its first run")


def test_a_destroy_of_slurm_or_of_its_cluster_under_a_job_names_it_and_refuses(
    lab: Lab, slurm: Slurm
) -> None:
    job = slurm.young_job(sorted(slurm.nodes())[0], 120)
    of_slurm = lab.run(*BUSBAR, "destroy", *STACK, "--yes", seconds=SECONDS)
    text = of_slurm.stdout + of_slurm.stderr
    assert of_slurm.returncode == 1, text
    assert f"job {job} of Slurm; nothing was removed" in text
    assert "removal.cancel_jobs: true in Pulumi.dev.yaml" in text
    of_cluster = lab.run(sys.executable, "-m", "busbar", "destroy", "dev", "--yes", seconds=SECONDS)
    text = of_cluster.stdout + of_cluster.stderr
    assert of_cluster.returncode == 1, text
    assert "other stacks are on this cluster; nothing was removed" in text
    assert "`busbar destroy dev` in the folder of busbar-slurm_k8s" in text
    until(lambda: slurm.has_ended_well(job), SECONDS, "the job has ended in its first run")
