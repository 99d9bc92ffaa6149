"""Slurm on the lab's hosts: what `make up-slurm` made, and a second update."""

import pytest

from stacks.slurm.tests.lab.conftest import COMPUTE, HOSTS, LOGIN, SLURM, Site, unmeasured
from tests.support.lab import Lab, eventually

pytestmark = pytest.mark.drill


def test_make_up_slurm_ends_with_the_table_of_a_measurement_that_passed(made: Lab) -> None:
    rows = [" ".join(line.split()) for line in made.printed.splitlines()]
    assert any(row.startswith("lab pass ") for row in rows), made.printed
    assert "controller 10.77.0.131" in rows
    assert not any("K3s" in row for row in rows)


def test_its_outputs_are_those_of_the_core_with_a_prefix(made: Lab) -> None:
    outputs = made.outputs(SLURM)
    assert outputs["slurm_nccl_passed"] is True and outputs["slurm_nccl_reasons"] == []
    assert outputs["slurm_nccl_busbw_gbps"] > 0
    assert outputs["slurm_versions"]["slurm"].startswith("24.11.")
    assert (SLURM / ".busbar" / "dev" / "lab" / "report.html").is_file()


def test_a_step_of_a_login_host_runs_on_all_nodes_with_the_gpus_that_it_was_given(site: Site) -> None:
    printed = site.slurm(
        "srun --nodes=3 --ntasks-per-node=1 --gpus-per-node=2 --mpi=pmix sh -c"
        " 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'",
        LOGIN,
    )
    assert sorted(printed.split("\n"))[-3:] == [f"{name} 0,1" for name in COMPUTE]


def test_a_second_update_changes_nothing_and_asks_no_compute_host(site: Site) -> None:
    before = site.logins()
    code, text = site.up(None, "--expect-no-changes")
    assert code == 0, text
    # Those of this count itself.
    assert site.logins() - before <= len(COMPUTE)


def test_jobs_of_one_gpu_run_on_all_gpus_at_once_and_their_gpu_time_is_accounted(site: Site) -> None:
    site.wait_idle()
    jobs = [site.submit("sleep 900", "--gpus=1") for _ in range(2 * len(COMPUTE))]
    listed = ",".join(jobs)

    def running() -> list[str]:
        return sorted(site.slurm(f"squeue -h -t running -o %N -j {listed}").split())

    try:
        eventually(lambda: running() == sorted(2 * COMPUTE), 60, "two jobs run on every node")
    finally:
        site.slurm(f"scancel {listed}")

    def accounted() -> list[list[str]]:
        shown = site.slurm(f"sacct -n -X -P -o State,AllocTRES,ElapsedRaw -j {listed}").split("\n")
        return [line.split("|") for line in shown if line.startswith("CANCELLED")]

    eventually(lambda: len(accounted()) == len(jobs), 60, "all jobs are in sacct")
    for _, resources, seconds in accounted():
        assert "gres/gpu=1" in resources.split(",") and int(seconds) > 0


def test_a_slurmd_that_is_killed_starts_again_and_its_job_runs_on(site: Site) -> None:
    site.wait_idle()
    job = site.submit("sleep 900", "--nodelist=compute-2")
    eventually(lambda: site.states()["compute-2"] in ("mixed", "allocated"), 60, "the job runs")
    pid = "systemctl show -p MainPID --value slurmd"
    before = site.lab.ssh("compute-2", f"p=$({pid}); kill -9 $p; echo $p")
    try:
        eventually(lambda: site.lab.ssh("compute-2", pid) not in ("0\n", before), 60, "slurmd starts again")
        active = "systemctl is-active slurmd || true"
        eventually(lambda: site.lab.ssh("compute-2", active) == "active\n", 60, "slurmd runs")
        assert site.slurm(f"squeue -h -j {job} -o %T").strip() == "RUNNING"
        assert site.slurm(f"scontrol show job {job} | grep -o Restarts=.").strip() == "Restarts=0"
    finally:
        site.slurm(f"scancel {job}")
    site.wait_idle()


def test_a_node_is_removed_and_added_under_a_job_on_others(site: Site) -> None:
    def smaller(slurm: dict[str, object]) -> None:
        unmeasured(slurm)
        del slurm["hosts"]["compute"][2]  # type: ignore[index]

    site.wait_idle()
    number = site.submit("sleep 600", "--nodes=2 --nodelist=compute-1,compute-2")
    try:
        code, text = site.up(smaller)
        assert code == 0, text
        assert sorted(site.states()) == ["compute-1", "compute-2"]
        code, text = site.up(unmeasured)
        assert code == 0, text
        assert site.states()["compute-3"] == "idle"
        assert site.slurm(f"squeue -h -j {number} -o %T").strip() == "RUNNING"
        assert site.slurm(f"scontrol show job {number} | grep -o Restarts=.").strip() == "Restarts=0"
    finally:
        site.slurm(f"scancel {number}")
    site.wait_idle()


def test_a_user_has_one_uid_everywhere_runs_jobs_and_is_deleted_with_its_line(site: Site) -> None:
    def with_user(slurm: dict[str, object]) -> None:
        unmeasured(slurm)
        slurm["users"] = {"accounts": {"ada": {"uid": 5001, "ssh_keys": ["ssh-ed25519 AAAA ada"]}}}

    site.wait_idle()
    restarted = "systemctl show -p ExecMainStartTimestamp --value slurmd"
    before = site.lab.ssh("compute-1", restarted)
    code, text = site.up(with_user)
    assert code == 0, text
    printed = site.slurm("runuser -u ada -- srun --nodes=3 --ntasks-per-node=1 id -u", LOGIN)
    assert printed.split() == ["5001"] * 3
    assert site.lab.ssh("compute-2", "cat /home/ada/.ssh/authorized_keys") == "ssh-ed25519 AAAA ada\n"
    assert site.lab.ssh("compute-1", restarted) == before
    words = "sbatch --parsable --chdir=/ --output=/dev/null --wrap 'sleep 900'"
    job = site.slurm(f"runuser -u ada -- {words}", LOGIN).strip()
    try:
        code, text = site.up(unmeasured)
        assert code != 0 and f"user ada is no longer configured, and has jobs {job}" in text, text
        assert [site.lab.ssh(host, "id -u ada").strip() for host in HOSTS] == ["5001"] * len(HOSTS)
    finally:
        site.slurm(f"scancel {job}")
    eventually(lambda: not site.slurm("squeue -h -u ada").strip(), 60, "the job has ended")
    code, text = site.up(unmeasured)
    assert code == 0, text
    for host in HOSTS:
        assert site.lab.ssh(host, "id -u ada 2>/dev/null || ls -d /home/ada").split() == ["/home/ada"]
