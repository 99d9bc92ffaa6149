"""An NFS server of our own on the load balancer, and clients on workers and on another host."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.build.tools import NFS_TOOL
from lab.hosts import nfs
from lab.hosts.nspawn import SHARED, SHARED_MOUNT
from tests.support.lab import PROJECT, WORKERS, Lab

pytestmark = pytest.mark.drill

FOLDER = "/srv/busbar"
SERVER = "10.77.0.10"
SOURCES = "/etc/apt/sources.list.d/busbar-lab-nfs.list"
EXPORTS = "/etc/exports.d/busbar.exports"
# Another apt holds its locks for half a minute after a host has booted.
APT = "apt-get -o DPkg::Lock::Timeout=120"
# `server-1` is of the cluster, and no worker.
OTHER = "server-1"


def _up(lab: Lab, what: str, change: Callable[[dict[str, Any]], None]) -> tuple[int, str, str]:
    """An update without the measurement: exit code, output, and its stack file; prints how long it took."""

    def with_nfs(cluster: dict[str, Any]) -> None:
        cluster["validation"]["enabled"] = False
        cluster["nfs_server"] = {"host": "lb-1", "folder": FOLDER, "min_free_gb": 1}
        change(cluster)

    file = str(lab.config_with(with_nfs))
    began = time.monotonic()
    done = lab.up("--config-file", file)
    print(f"{what}: {time.monotonic() - began:.0f} s")
    return done.returncode, done.stdout + done.stderr, file


def _client(lab: Lab, host: str, command: str) -> tuple[bool, str]:
    """Whether the client on a host succeeded, and what it printed."""
    printed = lab.ssh(host, f"if timeout 20 {command} 2>&1; then echo; echo yes; else echo; echo no; fi")
    text, _, result = printed.rstrip().rpartition("\n")
    return result == "yes", text.strip()


def _put(lab: Lab, host: str, file: str, text: str) -> tuple[bool, str]:
    return _client(lab, host, f"{nfs.PROGRAM} put {SERVER} {FOLDER} {file} <<<'{text}'")


def _get(lab: Lab, host: str, file: str) -> tuple[bool, str]:
    return _client(lab, host, f"{nfs.PROGRAM} get {SERVER} {FOLDER} {file}")


def _drift(lab: Lab, file: str) -> list[dict[str, str]]:
    """What `busbar verify` names, with the configuration of an update."""
    # Its paths are relative to the folder of the file.
    stack, kept = PROJECT / "Pulumi.drill-nfs.yaml", PROJECT / ".busbar" / "drill-nfs"
    shutil.copy(file, stack)
    # It is no stack of the engine, which the kubeconfig could be read from.
    kept.mkdir()
    shutil.copy(PROJECT / ".busbar" / "dev" / "kubeconfig", kept)
    try:
        verified = lab.run(sys.executable, "-m", "busbar", "verify", str(stack), "--json")
    finally:
        stack.unlink()
        shutil.rmtree(kept)
    drift = json.loads(verified.stdout)["drift"]
    assert isinstance(drift, list)
    return drift


@pytest.fixture(scope="module")
def disk(lab: Lab) -> Iterator[None]:
    """Packages for the hosts, and a disk of its own for the folder; everything is taken back afterwards."""
    assert NFS_TOOL.output.exists(), "python -m lab build --drills builds it"
    packages = SHARED / "nfs-packages"
    line = nfs.publish(packages, f"{SHARED_MOUNT}/nfs-packages")
    for host in ("lb-1", *WORKERS, OTHER):
        lab.ssh(host, f"echo '{line}' >{SOURCES}")
    lab.ssh("lb-1", f"mkdir -p {FOLDER} && mount -t tmpfs -o mode=1777,size=2g busbar-lab-nfs {FOLDER}")
    yield
    purge = f"{APT} purge -q -y nfs-common nfs-kernel-server >/dev/null 2>&1 || true"
    for host in ("lb-1", *WORKERS, OTHER):
        lab.ssh(host, f"{purge}; rm -f {SOURCES}")
    lab.ssh("lb-1", f"umount {FOLDER} && rmdir {FOLDER}")
    shutil.rmtree(packages)
    lab.updated()


@pytest.mark.usefixtures("disk")
def test_a_folder_is_exported_to_the_workers_of_the_moment_and_keeps_its_data(lab: Lab) -> None:
    code, text, _ = _up(lab, "refused by preflight", lambda _: None)
    assert code != 0
    assert "worker-1, worker-2: mount.nfs is not installed" in text
    assert "Fix: apt-get install nfs-common" in text
    assert lab.ssh("lb-1", f"ls {EXPORTS} 2>/dev/null || true") == "", "no changes made"

    for host in (*WORKERS, OTHER):
        lab.ssh(host, f"{APT} update -q >/dev/null 2>&1; {APT} install -q -y nfs-common >/dev/null")
    code, text, file = _up(lab, "NFS server installed", lambda _: None)
    assert code == 0, text
    assert lab.outputs()["nfs_server"] == {"address": SERVER, "export": FOLDER}
    assert _put(lab, "worker-1", "step-1", "loss 0.25") == (True, "")
    assert _get(lab, "worker-2", "step-1") == (True, "loss 0.25")
    assert lab.ssh("lb-1", f"stat -c %U {FOLDER}/step-1").strip() == "nobody"
    for worked, said in (_put(lab, OTHER, "step-2", "x"), _get(lab, OTHER, "step-1")):
        assert not worked
        assert f"mount {SERVER}:{FOLDER}: " in said
    assert _drift(lab, file) == []

    started = lab.ssh("lb-1", "systemctl show -p MainPID nfs-server")
    lab.ssh("lb-1", f"echo '{FOLDER} 10.77.0.11(rw)' >>{EXPORTS} && exportfs -ra")
    assert _get(lab, OTHER, "step-1")[0], "somebody has added another client by hand"
    changed = {"host": "lb-1", "what": f"{EXPORTS} was changed", "kind": "drift"}
    assert [each for each in _drift(lab, file) if changed.items() <= each.items()]

    def without_worker_2(cluster: dict[str, Any]) -> None:
        del cluster["hosts"]["workers"][1]

    code, text, _ = _up(lab, "worker removed", without_worker_2)
    assert code == 0, text
    assert _get(lab, "worker-1", "step-1") == (True, "loss 0.25")
    for host in ("worker-2", OTHER):
        assert not _get(lab, host, "step-1")[0], f"{host} is not exported to any more"
    assert lab.ssh("lb-1", "systemctl show -p MainPID nfs-server") == started, "without a restart"

    code, text, _ = _up(lab, "NFS server removed", lambda cluster: cluster.pop("nfs_server"))
    assert code == 0, text
    assert f"{FOLDER} is no longer exported; its data stay on this host" in text
    assert lab.ssh("lb-1", f"cat {FOLDER}/step-1").strip() == "loss 0.25"
    made = f"{EXPORTS} /etc/nfs.conf.d/busbar.conf /var/lib/busbar-nfs /usr/sbin/exportfs"
    assert lab.ssh("lb-1", f"ls -d {made} 2>/dev/null || true") == ""
    assert not _get(lab, "worker-1", "step-1")[0]
    assert "nfs_server" not in lab.outputs()
