"""An administrator's own changes stay, and a user's jobs are not ended without a word."""

import re
from typing import Any

import pytest

from lab.hosts import nspawn
from stacks.slurm.lab import topology
from stacks.slurm.lab.hosts import boot
from stacks.slurm.tests.lab.conftest import SLURM, Site, unmeasured
from tests.support.lab import eventually

pytestmark = pytest.mark.drill

JOB_SECONDS = 600
PARTITION = "sinfo -h -o '%P %a %l'"


def more_jobs(slurm: dict[str, Any]) -> None:
    """A change of slurm.conf, which slurmctld reads."""
    unmeasured(slurm)
    slurm["parameters"] = {**slurm.get("parameters", {}), "MaxJobCount": "4321"}


def running(site: Site, job: str) -> bool:
    return site.slurm(f"squeue -h -j {job} -o %T").strip() == "RUNNING"


def test_a_destroy_under_a_job_is_refused_and_with_the_switch_ends_it_first(site: Site) -> None:
    site.wait_idle()
    job = site.submit(f"sleep {JOB_SECONDS}")
    eventually(lambda: running(site, job), 60, "the job runs")
    code, text = site.busbar("destroy", "dev", "--yes")
    assert code == 1, text
    assert f"job {job}; nothing was removed" in text
    assert "removal.cancel_jobs: true in Pulumi.dev.yaml" in text
    assert running(site, job)
    # A destroy by the engine alone is refused by the host on which the step runs.
    done = site.lab.pulumi("destroy", "--yes", "--skip-preview", "--stack", "dev", cwd=SLURM)
    assert done.returncode != 0 and f"steps of jobs run here: {job}." in done.stdout
    assert running(site, job)
    site.slurm(f"scancel {job}")
    site.up(unmeasured)


def test_a_partition_that_was_closed_stays_closed_through_an_update(site: Site) -> None:
    site.wait_idle()
    name = site.slurm("sinfo -h -o %R | head -n 1").strip()
    site.slurm(f"scontrol update partitionname={name} state=down maxtime=01:00:00")
    waiting = site.submit("true", f"--partition={name} --time=10")
    try:
        code, text = site.up(more_jobs)
        assert code == 0, text
        assert "keeps State=DOWN, which was set by hand" in text
        assert site.slurm(PARTITION).split()[1:3] == ["down", "1:00:00"]
        assert site.slurm(f"squeue -h -j {waiting} -o %T").strip() == "PENDING"
    finally:
        site.slurm(f"scancel {waiting}; scontrol update partitionname={name} state=up maxtime=unlimited")


def test_a_reservation_is_no_difference_for_verify(site: Site) -> None:
    site.wait_idle()
    site.slurm(
        "scontrol create reservation=works nodes=compute-1 flags=maint starttime=now duration=30 users=root"
    )
    try:
        eventually(lambda: site.states()["compute-1"] == "maint", 60, "compute-1 is in maintenance")
        code, text = site.busbar("verify", "dev")
        assert code == 0, text
        assert re.search(r"^compute-1 +compute +as applied$", text, re.MULTILINE), text
    finally:
        site.slurm("scontrol delete reservation=works")


def test_a_dead_host_in_quarantine_fails_no_update(site: Site) -> None:
    def dead(slurm: dict[str, Any]) -> None:
        more_jobs(slurm)
        slurm.setdefault("users", {}).setdefault("accounts", {})["eve"] = {"uid": 5777}
        [host] = [each for each in slurm["hosts"]["compute"] if each["name"] == "compute-3"]
        host["quarantine"] = "no power"

    site.wait_idle()
    [gone] = [host for host in topology.HOSTS if host.name == "compute-3"]
    nspawn.stop(nspawn.folder(gone))
    try:
        for _ in range(2):
            code, text = site.up(dead)
            assert code == 0, text
        assert "left out of this update" in text or "compute-3" not in text
    finally:
        boot()
    # The machine is there again, with an empty disk.
    code, text = site.up(unmeasured)
    assert code == 0, text
    code, text = site.busbar("verify", "dev")
    assert code == 1 and "Fix: busbar up dev --converge compute-3" in text, text
    code, text = site.busbar("up", "dev", "--yes", "--converge", "compute-3")
    assert code == 0, text
    site.wait_idle()
