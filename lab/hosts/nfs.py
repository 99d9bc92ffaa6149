"""Debian packages of the NFS replacement (lab/go/nfs), as a repository that the hosts' apt reads.

They have the names of Debian's packages and a later version, so that the product installs and purges them as
it does the real ones.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from lab.build.tools import NFS_TOOL
from lab.hosts import repository

VERSION = "1:99+busbar-lab"
PROGRAM = "/usr/sbin/busbar-lab-nfs"
"""The server and the client in the packages."""

_UNIT = f"""\
[Unit]
Description=busbar lab: replacement of the kernel's NFS server
After=network.target

[Service]
ExecStartPre=+/usr/sbin/exportfs -ra
ExecStart={PROGRAM} serve
# With all_squash every user is nobody.
User=nobody
Group=nogroup

[Install]
WantedBy=multi-user.target
Alias=nfs-kernel-server.service
"""
_MOUNT = """\
#!/bin/sh
echo "mount.nfs: this kernel has no NFS client (busbar lab)" >&2
exit 32
"""
_SCRIPTS = {
    "postinst": "systemctl daemon-reload && systemctl enable -q --now nfs-server.service",
    "prerm": "systemctl disable -q --now nfs-server.service",
    "postrm": "systemctl daemon-reload",
}


def publish(folder: Path, source: str) -> str:
    """Make the repository in `folder`; the line of sources.list for hosts that see it as `source`.

    Raises subprocess.CalledProcessError where dpkg-deb fails.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    common = {"usr/sbin/mount.nfs": _MOUNT.encode(), PROGRAM.lstrip("/"): NFS_TOOL.output.read_bytes()}
    server = {"lib/systemd/system/nfs-server.service": _UNIT.encode()}
    exportfs = {"usr/sbin/exportfs": PROGRAM}
    _package(folder, "nfs-common", common, {})
    _package(folder, "nfs-kernel-server", server, _SCRIPTS, links=exportfs, needs="nfs-common")
    return repository.index(folder, source)


def _package(
    folder: Path,
    name: str,
    files: dict[str, bytes],
    scripts: dict[str, str],
    *,
    links: dict[str, str] | None = None,
    needs: str = "",
) -> None:
    """Build one package."""
    tree = folder / f"{name}.tree"
    control = (
        f"Package: {name}\nVersion: {VERSION}\nArchitecture: all\nMaintainer: busbar lab <lab@localhost>\n"
        + (f"Depends: {needs}\n" if needs else "")
        + "Description: replacement of the kernel's NFS\n"
    )
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(control)
    (tree / "var/lib/nfs").mkdir(parents=True)
    for script, line in scripts.items():
        (tree / "DEBIAN" / script).write_text(f"#!/bin/sh\nset -e\n{line}\n")
        (tree / "DEBIAN" / script).chmod(0o755)
    for path, content in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(content)
        (tree / path).chmod(0o755 if "/sbin/" in f"/{path}" else 0o644)
    for path, target in (links or {}).items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).symlink_to(target)
    for made in (tree, *tree.rglob("*")):
        if made.is_dir() and not made.is_symlink():
            made.chmod(0o755)  # dpkg-deb refuses folders that only their owner may read, as after umask 077
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", tree, folder / f"{name}.deb"],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    shutil.rmtree(tree)
