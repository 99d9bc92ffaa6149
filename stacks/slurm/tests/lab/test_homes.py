"""Homes on the controller, mounted by all other hosts.

This kernel has no NFS: the server is the lab's replacement, and what takes the place of mount.nfs4 asks it
for a file and then shows what it serves.
"""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from lab.build.tools import NFS_TOOL
from lab.hosts import nfs
from lab.hosts.nspawn import SHARED, SHARED_MOUNT
from stacks.slurm.tests.lab.conftest import COMPUTE, CONTROLLER, HOSTS, LOGIN, SLURM, Site, unmeasured
from tests.support.lab import Lab

pytestmark = pytest.mark.drill

FOLDER, MOUNT = "/srv/home", "srv-home.mount"
CLIENTS = (LOGIN, *COMPUTE)
DISK = "homes"
PACKAGES = "nfs-packages"
SOURCES = "/etc/apt/sources.list.d/busbar-lab-nfs.list"
APT = "apt-get -o DPkg::Lock::Timeout=120"
MOUNT_NFS4 = f"""#!/bin/sh
set -e
timeout 20 {nfs.PROGRAM} get "${{1%%:*}}" "${{1#*:}}" .served >/dev/null
exec mount --bind {SHARED_MOUNT}/{DISK} "$2"
"""


def with_homes(slurm: dict[str, Any]) -> None:
    unmeasured(slurm)
    slurm["home"] = {"nfs": {"folder": FOLDER, "min_free_gb": 1}}
    slurm["users"] = {"accounts": {"ada": {"uid": 5001}}}


@pytest.fixture(scope="module")
def disk(made: Lab) -> Iterator[None]:
    """Packages for the hosts, and a disk of its own for the homes; everything is taken back afterwards."""
    assert NFS_TOOL.output.exists(), "python -m lab build --drills builds it"
    line = nfs.publish(SHARED / PACKAGES, f"{SHARED_MOUNT}/{PACKAGES}")
    (SHARED / DISK).mkdir()
    (SHARED / DISK / ".served").write_text("homes")
    for host in HOSTS:
        made.ssh(host, f"echo '{line}' >{SOURCES}")
    made.ssh(CONTROLLER, f"mkdir -p {FOLDER} && mount --bind {SHARED_MOUNT}/{DISK} {FOLDER}")
    yield
    for host in HOSTS:
        made.ssh(host, f"{APT} purge -q -y nfs-common >/dev/null; rm -f {SOURCES} /usr/sbin/mount.nfs4")
    made.ssh(CONTROLLER, f"umount {FOLDER} && rmdir {FOLDER}")
    shutil.rmtree(SHARED / PACKAGES)
    shutil.rmtree(SHARED / DISK)


def drift(site: Site) -> list[str]:
    """What `busbar verify` names, with the configuration of the last update."""
    # Its paths are relative to the folder of the file.
    stack = SLURM / "Pulumi.drill-homes.yaml"
    shutil.copy(site.changes[-1], stack)
    try:
        _, text = site.busbar("verify", str(stack), "--json")
    finally:
        stack.unlink()
    return [f"{each['host']}: {each['what']}" for each in json.loads(text[text.index("{") :])["drift"]]


@pytest.mark.usefixtures("disk")
def test_homes_are_one_folder_on_all_hosts_and_stay_where_they_were_made(site: Site) -> None:
    site.wait_idle()
    code, text = site.up(with_homes)
    assert code != 0 and "mount.nfs is not installed" in text and "apt-get install nfs-common" in text, text
    for host in HOSTS:
        site.lab.ssh(host, f"{APT} update -q >/dev/null 2>&1; {APT} install -q -y nfs-common >/dev/null")
        site.lab.ssh(
            host, f"cat >/usr/sbin/mount.nfs4 <<'END'\n{MOUNT_NFS4}END\nchmod 755 /usr/sbin/mount.nfs4"
        )

    code, text = site.up(with_homes)
    assert code == 0, text
    for host in CLIENTS:
        assert site.lab.ssh(host, f"systemctl is-active {MOUNT}; systemctl is-enabled {MOUNT}").split() == [
            "active",
            "enabled",
        ]
    exported = site.lab.ssh(CONTROLLER, "exportfs -s")
    assert exported.count("root_squash") == len(CLIENTS)
    write = "srun --nodes=1 -w compute-1 sh -c 'hostname >~/from'"
    assert (
        site.slurm(f"runuser -l ada -c \"{write}\" && runuser -l ada -c 'cat ~/from'", LOGIN) == "compute-1\n"
    )
    assert site.lab.ssh(CONTROLLER, f"stat -c '%U %a' {FOLDER}/ada").split() == ["ada", "700"]
    assert drift(site) == []

    site.lab.ssh("compute-2", f"umount {FOLDER}")
    assert drift(site) == [f"compute-2: {MOUNT} is not running (inactive)"]
    site.lab.ssh("compute-2", f"systemctl start {MOUNT}")
    assert drift(site) == []

    code, text = site.up(unmeasured)
    assert code == 0, text
    assert f"{FOLDER} is no longer exported; its data stay on this host" in text
    for host in CLIENTS:
        left = f"ls -d {FOLDER} /etc/systemd/system/{MOUNT} 2>/dev/null || true; findmnt -n {FOLDER} || true"
        assert site.lab.ssh(host, left) == ""
    assert site.lab.ssh(CONTROLLER, f"cat {FOLDER}/ada/from") == "compute-1\n"
