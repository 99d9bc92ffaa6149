"""One host of the lab: an overlay over the base, booted by systemd-nspawn."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil

from lab import offline
from lab.hosts import cgroups, disk, processes
from lab.mirror.artifacts import k3s_is_replaced
from lab.paths import HOSTS, LOGS, RUN
from lab.steps import run
from lab.topology import BRIDGE, MANAGEMENT_INTERFACE, MANAGEMENT_PARENT, Host

# Folders on this machine's file system: containerd's overlayfs does not work on the hosts' overlay.
BIND_MOUNTS = {
    "rancher": "/var/lib/rancher",
    "kubelet": "/var/lib/kubelet",
}


# The same folder of this machine on every host, as a parallel file system of a site would be.
SHARED = RUN / "shared"
SHARED_MOUNT = "/mnt/shared"


def folder(host: Host) -> Path:
    """The folder with this host's files."""
    return HOSTS / host.name


def running(host: Host) -> psutil.Process | None:
    """The host's systemd-nspawn process; None if it does not run."""
    return processes.recorded(folder(host) / "process.json")


def usable(host: Host) -> bool:
    """True when the host runs and is still attached to the bridge (only a boot attaches it)."""
    return running(host) is not None and Path(f"/sys/class/net/vb-{host.name}/brport").exists()


def boot(host: Host, base: Path, client_key: str, named: Iterable[Host] = ()) -> None:
    """Start the host, which must not be usable; returns at once, before the host has booted.

    `named`: the hosts whose names it resolves.
    """
    clean_stale_state(host)
    here = folder(host)
    made_from = here / "base"
    if here.exists() and not (made_from.exists() and made_from.read_text() == str(base)):
        shutil.rmtree(here)  # incomplete, or made from another base
    root, upper = here / "root", here / "upper"
    for part in (root, upper, here / "work", SHARED, *(here / name for name in BIND_MOUNTS)):
        part.mkdir(parents=True, exist_ok=True)
    disk.install_base(host, upper, here / "rancher", client_key, named)
    made_from.write_text(str(base))
    layers = f"lowerdir={base},upperdir={upper},workdir={here / 'work'}"
    run(["mount", "-t", "overlay", f"busbar-lab-{host.name}", "-o", layers, root])

    LOGS.mkdir(parents=True, exist_ok=True)
    # The shell enters the host's cgroups before systemd-nspawn makes the namespaces.
    enter = (
        'for procs in $BUSBAR_LAB_CGROUPS; do echo $$ > "$procs"; done; unset BUSBAR_LAB_CGROUPS; exec "$@"'
    )
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "BUSBAR_LAB_CGROUPS": " ".join(str(procs) for procs in cgroups.make(host.name)),
    }
    with (LOGS / f"{host.name}.console.log").open("wb") as console:
        started = subprocess.Popen(
            ["/bin/sh", "-ec", enter, "sh", *command(host)],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    processes.record(here / "process.json", started.pid)


def containerd() -> dict[str, Path]:
    """The programs that the replacement of K3s needs on a host: the name → the program here."""
    server, shim = (tool.output for tool in offline.CONTAINERD)
    return {"containerd": server, "ctr": server, shim.name: shim}


def command(host: Host) -> list[str]:
    """The systemd-nspawn command line of a host."""
    here = folder(host)
    programs = containerd() if host.for_k3s and k3s_is_replaced() else {}
    return [
        "systemd-nspawn",
        "--quiet",
        "--boot",
        f"--directory={here / 'root'}",
        f"--machine={host.name}",
        f"--network-bridge={BRIDGE}",
        f"--network-macvlan={MANAGEMENT_PARENT}",
        "--register=no",
        "--keep-unit",
        "--capability=all",
        "--system-call-filter=@keyring bpf",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "--bind=/dev/kmsg",
        *(f"--bind={here / name}:{target}" for name, target in BIND_MOUNTS.items() if host.for_k3s),
        *(f"--bind-ro={program}:/usr/local/bin/{name}" for name, program in programs.items()),
        f"--bind={SHARED}:{SHARED_MOUNT}",
        # For systemd 256 and 257 on cgroup v1; older ones do not know it.
        "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1",
    ]


def stop(host_folder: Path) -> list[str]:
    """End a host at once and remove its mounts, cgroups and files; returns what was removed.

    Without a shutdown of the host's init: its processes end with its pid namespace, nothing is kept.
    """
    name = host_folder.name
    removed = _end(name, processes.recorded(host_folder / "process.json"))
    removed += _remove_nspawn_state(host_folder)
    removed += _unmount(host_folder)
    if cgroups.remove(name):
        removed.append("cgroups")
    if host_folder.exists():
        shutil.rmtree(host_folder)
        removed.append("files")
    return removed


def clean_stale_state(host: Host) -> None:
    """Remove processes, mounts and cgroups of a host that is not usable; keep its disk."""
    here = folder(host)
    _end(host.name, None)
    _remove_nspawn_state(here)
    _unmount(here)
    cgroups.remove(host.name)


def _end(name: str, recorded: psutil.Process | None) -> list[str]:
    """End a host's processes; systemd-nspawn ends last, by itself, so that it cleans up."""
    orphans = processes.find("systemd-nspawn", f"--network-bridge={BRIDGE}", f"--machine={name}")
    nspawn = recorded or (orphans[0] if orphans else None)
    _remove_macvlan(name)
    found = cgroups.kill(name, except_pid=nspawn.pid if nspawn else None)
    if nspawn and not processes.ends_within(nspawn, 5):
        processes.end(nspawn, grace=0)
    cgroups.kill(name)
    return ["processes"] if found or nspawn else []


def _remove_macvlan(name: str) -> None:
    """Delete a host's interface in the management network.

    Connections that a host had open keep its network namespace for minutes after its last process. With the
    namespace stays the macvlan, and the next boot's, which has the same MAC address, does not come up.
    """
    delete = ["ip", "link", "delete", MANAGEMENT_INTERFACE]
    # Pods have namespaces of their own; the first processes of a host do not.
    for pid in sorted(cgroups.processes(name)):
        if run(["nsenter", f"--net=/proc/{pid}/ns/net", *delete], check=False).returncode == 0:
            return


def _remove_nspawn_state(host_folder: Path) -> list[str]:
    """Remove what a killed systemd-nspawn leaves: its end of the veth pair, a folder, a lock."""
    removed = []
    if Path(f"/sys/class/net/vb-{host_folder.name}").exists():
        # The kernel removes the veth pair some time after the last process of the network namespace.
        run(["ip", "link", "delete", f"vb-{host_folder.name}"], check=False)
        removed.append("network interface")
    state = Path("/run/systemd/nspawn")
    root = host_folder / "root"
    if root.is_dir():
        (state / "locks" / f"inode-{root.stat().st_dev}:{root.stat().st_ino}").unlink(missing_ok=True)
    if (state / "propagate" / host_folder.name).is_dir():
        (state / "propagate" / host_folder.name).rmdir()
    return removed


def _unmount(host_folder: Path) -> list[str]:
    inside = str(host_folder.resolve()) + "/"
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    removed = []
    for point in reversed([mount for mount in mounts if mount.startswith(inside)]):
        run(["umount", point])
        removed.append("mount")
    return removed
