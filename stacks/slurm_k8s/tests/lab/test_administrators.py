"""An administrator's changes in Slurm stay, and a user's jobs are not ended without a word.

The drills are one story, in this order.
"""

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
    """A change of the pod template, which replaces every pod of slurmd. No node is left to be measured."""
    config["probe"] = {"enforce": False}
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
    updated(lab)  # measures anew, because the pods are others


def test_a_closed_partition_stays_closed_through_a_changed_slurm_conf(lab: Lab, slurm: Slurm) -> None:
    slurm("scontrol update partitionname=lab state=down maxtime=60")
    job = slurm.submit("true", "-p lab")
    try:
        text = updated(lab, *config_with(lab, other_memory))
        assert "none ran: partition lab is closed (PartitionDown); the last one passed at" in text
        assert slurm("sinfo -h -p lab -o '%a %l'").split() == ["down", "1:00:00"]
        assert slurm.state(job) == "PENDING"
    finally:
        slurm("scontrol update partitionname=lab state=up maxtime=UNLIMITED")
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


def test_a_nodeset_with_fewer_replicas_is_named_by_verify_and_mended_by_converge(
    lab: Lab, slurm: Slurm
) -> None:
    before = slurm.nodes()
    lab.kubectl('patch nodeset slurm-worker-lab -n slurm --type=merge -p \'{"spec": {"replicas": 1}}\'')
    until(lambda: len(workers(lab)) == 1, SECONDS, "one pod of slurmd is left")
    found = lab.run(*BUSBAR, "verify", *STACK)
    text = found.stdout + found.stderr
    assert found.returncode == 1, text
    assert "NodeSet slurm/slurm-worker-lab: spec.replicas is 1, expected 2" in text
    assert "Fix: busbar up dev --converge cluster" in text
    assert "no node of Slurm" in lab.run(*BUSBAR, "nodes", "dev").stdout
    unchanged = lab.run(*BUSBAR, "up", *STACK, "--yes", seconds=SECONDS)
    assert unchanged.returncode == 1, unchanged.stdout + unchanged.stderr
    assert "no node of Slurm" in unchanged.stdout + unchanged.stderr
    mended = lab.run(*BUSBAR, "up", *STACK, "--yes", "--converge", "cluster", seconds=900)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert set(slurm.nodes()) == set(before)
    verified = lab.run(*BUSBAR, "verify", *STACK)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def workers(lab: Lab) -> list[str]:
    """The pods of slurmd."""
    return lab.kubectl("get pods -n slurm -l app.kubernetes.io/component=worker -o name").split()


def test_a_node_that_is_completing_for_ever_is_named_with_the_step_that_ends_it(
    lab: Lab, slurm: Slurm
) -> None:
    node = slurm.on()["worker-1"]
    job = slurm.young_job(node, 600)
    pod = f"slurm-worker-{node}"
    lab.kubectl(f"exec -n slurm {pod} -c slurmd -- sh -c 'pkill -STOP slurmstepd'")
    slurm(f"scancel {job}")
    try:
        # Its limit is two minutes.
        until(lambda: f"job {job} has been completing" in verified(lab), SECONDS, "the job is named")
        assert f"kubectl -n slurm delete pod {pod}" in verified(lab)
        assert f"job {job} has been completing" in lab.run(*BUSBAR, "nodes", "dev").stdout
    finally:
        lab.kubectl(f"delete pod -n slurm {pod}")
    until(lambda: slurm.nodes().get(node) == "idle", SECONDS, "the node is idle")
    assert "has been completing" not in verified(lab)


def verified(lab: Lab) -> str:
    """What `busbar verify` prints of the stack."""
    return lab.run(*BUSBAR, "verify", *STACK).stdout
