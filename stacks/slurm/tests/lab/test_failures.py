"""Daemons, hosts and disks of the lab's Slurm cluster that fail: what is lost, and what names them."""

import threading
import time
from typing import Any

import pytest

from lab.hosts import nspawn
from stacks.slurm.lab.hosts import boot
from stacks.slurm.lab.topology import COMPUTE
from stacks.slurm.tests.lab.conftest import COMPUTE as NODES
from stacks.slurm.tests.lab.conftest import LOGIN, Site, unmeasured
from tests.support.lab import eventually

pytestmark = pytest.mark.drill

JOBS, RECENT_JOBS = 160, 40
SAFE_SECONDS = 10
# BatchStartTimeout and MessageTimeout: until then slurmctld misses no job that a node does not report.
REPORT_SECONDS = 25
QUEUE_SECONDS = 600
SLURMDBD_DOWN_SECONDS = 120
# Slurm gives a node up after SlurmdTimeout, 300 s.
NAMED_SECONDS = 240
# Prints a line "ID TIME" for each job that was acknowledged; some are older than SAFE_SECONDS at the end.
_SUBMIT = f"""
submit() {{
  local id
  id=$(sbatch --parsable --chdir=/ --output=/dev/null --mem=10 --wrap 'sleep 2') && echo "$id $(date +%s.%N)"
}}
for n in $(seq {JOBS}); do submit; done
sleep {SAFE_SECONDS}
for n in $(seq {RECENT_JOBS}); do submit; done
"""


def test_a_killed_slurmctld_forgets_no_job_that_was_acknowledged_10_s_before(site: Site) -> None:
    site.wait_idle()
    long = site.submit(
        "for n in $(seq 3600); do echo $n > /tmp/drill-tick; sleep 1; done", "--mem=10 -w compute-1"
    )
    eventually(lambda: site.job(long) == "RUNNING", 60, "the long job runs")

    def tick() -> int:
        return int(site.lab.ssh("compute-1", "cat /tmp/drill-tick") or 0)

    held = "squeue -h -t pending -o '%i|%r' | sed -n 's/|.*requeued held.*//p'"
    resumed: set[str] = set()
    released: set[str] = set()
    reported: list[str] = []

    def only_the_long_job_is_left() -> bool:
        """Also does what docs.md tells the operator to do."""
        if not reported and time.monotonic() > started + REPORT_SECONDS:
            reported.extend(site.lab.ssh(name, "systemctl reload slurmd") for name in NODES)
        for name, state in site.states().items():
            if state.startswith("drain") and site.reason(name).startswith("Duplicate jobid"):
                site.slurm(f"scontrol update nodename={name} state=resume")
                resumed.add(name)
        for number in site.slurm(held).split():
            site.slurm(f"scontrol release {number}")
            released.add(number)
        return site.slurm("squeue -h -o %i").split() == [long]

    try:
        acknowledged = dict(line.split() for line in site.slurm(_SUBMIT).splitlines())
        waiting = int(site.slurm("squeue -h -t pending | wc -l"))
        killed = float(site.slurm("kill -9 $(systemctl show -p MainPID --value slurmctld) && date +%s.%N"))
        before = tick()
        eventually(lambda: tick() > before, 30, "the job runs on without slurmctld")
        site.slurm("systemctl reset-failed slurmctld; systemctl start slurmctld")
        eventually(lambda: "is UP" in site.slurm("scontrol ping || true"), 60, "slurmctld answers")
        started = time.monotonic()
        eventually(only_the_long_job_is_left, QUEUE_SECONDS, "only the long job is left")
        before = tick()
        eventually(lambda: tick() > before, 30, "the long job still runs")
    finally:
        site.slurm(f"scancel {long}")
    told = "sdiag | grep -q 'DBD Agent queue size: 0' && echo told || true"
    eventually(lambda: "told" in site.slurm(told), 60, "slurmdbd knows everything")
    listed = site.slurm(f"sacct -n -X -P -o JobID,State -j {','.join(acknowledged)}").split()
    ended = dict(line.split("|") for line in listed)
    lost = {number for number in acknowledged if ended.get(number) != "COMPLETED"}
    again = site.slurm(
        f"sacct -n -X -D -P -o JobID,State -j {','.join(acknowledged)} | grep -c NODE_FAIL || true"
    )
    safe = {number for number, at in acknowledged.items() if float(at) < killed - SAFE_SECONDS}
    print(
        f"{len(acknowledged)} jobs acknowledged, {waiting} pending at the kill, {len(safe)} acknowledged "
        f"{SAFE_SECONDS} s before; forgotten: {len(lost)}, of them acknowledged so long before: "
        f"{len(lost & safe)}; had ended and ran again: {again.strip()}; held as duplicates: {len(released)}, "
        f"nodes that Slurm drained for these: {len(resumed)}; the queue was empty "
        f"{time.monotonic() - started:.0f} s after the start"
    )
    assert len(acknowledged) == JOBS + RECENT_JOBS and waiting > 0 and safe
    assert not lost & safe, {number: ended.get(number) for number in lost & safe}


def test_jobs_that_end_while_slurmdbd_is_down_are_all_in_sacct_afterwards(site: Site) -> None:
    site.wait_idle()
    site.slurm("systemctl stop slurmdbd")
    began = time.monotonic()
    numbers = []
    try:
        while time.monotonic() < began + SLURMDBD_DOWN_SECONDS:
            numbers.append(site.submit("sleep 1"))
            eventually(lambda: not site.slurm("squeue -h -o %i").strip(), 60, "the job has ended")
    finally:
        site.slurm("systemctl start slurmdbd")
    started = time.monotonic()
    eventually(lambda: all(site.job(each) == "COMPLETED" for each in numbers), 180, "all jobs are in sacct")
    print(f"{len(numbers)} jobs, all in sacct {time.monotonic() - started:.0f} s after the start of slurmdbd")


def test_a_host_that_is_off_stops_neither_its_quarantine_nor_the_preflight_of_a_measurement(
    site: Site,
) -> None:
    def quarantined(slurm: dict[str, Any]) -> None:
        unmeasured(slurm)
        slurm["hosts"]["compute"][2]["quarantine"] = "ticket 18"

    site.wait_idle()
    nspawn.clean_stale_state(COMPUTE[2])
    try:
        code, text = site.up(quarantined)
        assert code == 0 and "compute-3" in text and "left out of this update" in text, text
        assert site.states()["compute-3"].startswith("drain")
        code, text = site.busbar("measure", "dev")
        # Two of three are fewer than validation.min_nodes_fraction asks for.
        assert code == 2 and "compute-3 is drained: busbar: quarantine: ticket 18" in text, text
        assert "left out of this measurement" in text and "preflight failed" not in text, text
    finally:
        boot()


LATE = """[Unit]
Before=slurmd.service
[Service]
Type=oneshot
ExecStart=/bin/rm -f /dev/nvidia0 /dev/nvidia1
[Install]
WantedBy=multi-user.target
"""
LATER = """[Unit]
After=busbar-drill-late.service
[Service]
ExecStartPre=/bin/sleep 20
ExecStart=/bin/sh -c 'mknod -m 0666 /dev/nvidia0 c 1 3; mknod -m 0666 /dev/nvidia1 c 1 3'
Type=simple
[Install]
WantedBy=multi-user.target
"""


def test_a_node_whose_devices_come_late_at_boot_is_idle_with_all_its_gpus(site: Site) -> None:
    site.wait_idle()
    units = {"late": LATE, "later": LATER}
    for name, text in units.items():
        file = f"/etc/systemd/system/busbar-drill-{name}.service"
        site.lab.ssh("compute-2", f"cat >{file} <<'END'\n{text}END\nsystemctl enable -q {file}")
    nspawn.clean_stale_state(COMPUTE[1])
    try:
        boot()
        present = "ls /dev/nvidia0 2>/dev/null || true; systemctl is-active slurmd || true"
        assert site.lab.ssh("compute-2", present).split() == ["activating"], "it waits"
        began = time.monotonic()
        active = "systemctl is-active slurmd || true"
        eventually(lambda: site.lab.ssh("compute-2", active) == "active\n", 120, "slurmd runs")
        print(f"slurmd ran {time.monotonic() - began:.0f} s after the boot")
        site.wait_idle()
        assert site.slurm("sinfo -h -N -n compute-2 -o %G").startswith("gpu:2")
    finally:
        names = " ".join(f"busbar-drill-{name}.service" for name in units)
        site.lab.ssh("compute-2", f"systemctl disable -q {names}; cd /etc/systemd/system && rm {names}")
    site.wait_idle()


def test_converge_repairs_a_dead_daemon_another_key_and_an_edited_unit(site: Site) -> None:
    site.wait_idle()
    edited = "/etc/systemd/system/slurmd.service.d/busbar.conf"
    another = "head -c 1024 /dev/urandom > /etc/slurm/slurm.key"
    damage = {
        "compute-1": "systemctl stop slurmd",
        "compute-2": f"{another} && timeout 60 systemctl restart slurmd || true",
        "compute-3": f"echo '# by hand' >> {edited}",
    }
    for name, command in damage.items():
        site.lab.ssh(name, command)
    code, text = site.busbar("verify", "dev")
    assert code == 1 and "Fix: busbar up dev --converge compute-1,compute-2,compute-3" in text, text
    code, text = site.busbar("up", "dev", "--yes", "--converge", ",".join(damage))
    assert code == 0 and "--converge applies again: slurm-preflight, slurm-compute@compute-1" in text, text
    site.wait_idle()
    assert site.busbar("verify", "dev")[0] == 0


def test_a_full_disk_of_the_batch_host_is_named(site: Site) -> None:
    folder = "/var/lib/busbar"
    site.wait_idle()
    full = (
        f"cp -a {folder} /root/kept && mount -t tmpfs -o size=512k tmpfs {folder}"
        f" && cp -a /root/kept/. {folder}"
        f" && {{ dd if=/dev/zero of={folder}/filler bs=4k 2>/dev/null || true; }}"
    )
    site.lab.ssh("compute-1", full)
    try:
        began = time.monotonic()
        code, text = site.busbar("measure", "dev")
        took = time.monotonic() - began
    finally:
        site.lab.ssh("compute-1", f"umount {folder} && rm -r /root/kept")
    assert code == 2 and f"the disk of {folder} on compute-1 is full" in text, text
    assert took < NAMED_SECONDS, text
    site.wait_idle()


def test_a_host_that_is_killed_during_the_gate_leaves_it_unknown_and_is_named(site: Site) -> None:
    site.wait_idle()
    ended: list[tuple[int, str]] = []
    gate = threading.Thread(target=lambda: ended.append(site.busbar("measure", "dev")))
    gate.start()
    try:
        eventually(lambda: "nccl-lab" in site.slurm("squeue -h -t running -o %j"), 120, "the job runs")
        nspawn.clean_stale_state(COMPUTE[2])
        killed = time.monotonic()
        gate.join()
        took = time.monotonic() - killed
    finally:
        gate.join()
        boot()
    print(f"the gate ended {took:.0f} s after the kill")
    [(code, text)] = ended
    assert code == 2 and "compute-3" in text, text
    assert took < NAMED_SECONDS, text
    eventually(lambda: not site.slurm("squeue -h -o %j", LOGIN).strip(), 240, "the job is cancelled")
    site.wait_idle()
