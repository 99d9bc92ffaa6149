"""One cgroup per host of the lab.

systemd-nspawn without a service manager stays in its caller's cgroup; the kubelets of all hosts would then
share one `/kubepods`, and each would remove the pods of the others. The root of a cgroup namespace is the
cgroup of the process that creates it, so each host is started in its own cgroup.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PARENT = "busbar-lab"


def is_v1() -> bool:
    """True where this machine mounts the controllers separately (cgroup v1 or hybrid)."""
    return not (ROOT / "cgroup.controllers").exists()


def make(name: str) -> list[Path]:
    """Make the host's cgroups; returns the `cgroup.procs` files that a process has to be written into."""
    return [_make(hierarchy, name) / "cgroup.procs" for hierarchy in _hierarchies()]


def processes(name: str | None = None) -> set[int]:
    """The pids of everything that runs in a host's cgroups, or in those of all hosts."""
    found: set[int] = set()
    for top in _tops(name):
        for folder, _, _ in os.walk(top):
            # A process that ends takes its cgroup with it: before the file is opened, or while it is read.
            try:
                found.update(int(pid) for pid in (Path(folder) / "cgroup.procs").read_text().split())
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
    return found - {0}


def kill(name: str | None = None, *, except_pid: int | None = None, deadline: float = 15) -> bool:
    """End all processes in a host's cgroups, or in all hosts', except `except_pid`; False if there were none.

    Raises TimeoutError when something still runs after `deadline` seconds.
    """
    until = time.monotonic() + deadline
    found = False
    while pids := processes(name) - {except_pid}:
        found = True
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise TimeoutError(
                f"processes {sorted(pids)} of the lab still run {deadline:.0f} s after SIGKILL"
            )
        time.sleep(0.02)
    return found


def remove(name: str | None = None) -> bool:
    """Remove a host's cgroups, or those of all hosts; False where there were none. They must be empty."""
    tops = _tops(name)
    for top in tops:
        _remove_tree(top)
    return bool(tops)


def _tops(name: str | None) -> list[Path]:
    wanted = Path(PARENT) / name if name else Path(PARENT)
    return [hierarchy / wanted for hierarchy in _hierarchies() if (hierarchy / wanted).is_dir()]


def _hierarchies() -> list[Path]:
    if not is_v1():
        return [ROOT]
    return [path for path in sorted(ROOT.iterdir()) if path.is_dir() and not path.is_symlink()]


def _make(hierarchy: Path, name: str) -> Path:
    folder = hierarchy
    for part in (PARENT, name):
        _enable_controllers(folder)
        folder = folder / part
        folder.mkdir(exist_ok=True)
        _inherit_cpuset(folder)
    return folder


def _enable_controllers(folder: Path) -> None:
    """cgroup v2: a child has only the controllers that its parent enables."""
    controllers = folder / "cgroup.controllers"
    if controllers.exists():
        names = controllers.read_text().split()
        # One that cannot be enabled (`cpu` while a real-time task runs) must not prevent the others.
        for name in names:
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{name}")


def _inherit_cpuset(folder: Path) -> None:
    """cgroup v1: a new cpuset is empty, and no process can enter it until it has CPUs and memory nodes."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = folder / name
        if is_v1() and file.exists() and not file.read_text().strip():
            file.write_text((folder.parent / name).read_text())


def _remove_tree(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        os.rmdir(folder)
