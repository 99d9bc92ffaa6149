"""A cgroup of its own for each host of the lab.

systemd-nspawn without a service manager stays in its caller's cgroup; five kubelets would then share one
`/kubepods` and each would remove the others' pods. A cgroup namespace begins where the process stands when it
is made, so each host is started from a folder of its own.
"""

from __future__ import annotations

import contextlib
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
        for procs in top.rglob("cgroup.procs"):
            with contextlib.suppress(FileNotFoundError):  # a process that ends takes its cgroup with it
                found.update(int(pid) for pid in procs.read_text().split())
    return found - {0}


def kill(name: str | None = None, *, spare: int | None = None, deadline: float = 15) -> bool:
    """End everything in a host's cgroups (all hosts' without a name) but `spare`; False if there was nothing.

    Raises TimeoutError when something still runs after `deadline` seconds.
    """
    until = time.monotonic() + deadline
    found = False
    while pids := processes(name) - {spare}:
        found = True
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise TimeoutError(f"processes {sorted(pids)} of the lab outlived SIGKILL for {deadline:.0f} s")
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
        _pass_controllers_on(folder)
        folder = folder / part
        folder.mkdir(exist_ok=True)
        _inherit_cpuset(folder)
    return folder


def _pass_controllers_on(folder: Path) -> None:
    """cgroup v2: a child has only the controllers that its parent names."""
    controllers = folder / "cgroup.controllers"
    if controllers.exists():
        names = controllers.read_text().split()
        # One that the machine keeps for itself (a real-time task holds `cpu`, say) must not cost the others.
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
