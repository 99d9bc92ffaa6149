"""The packages of the NFS replacement, as apt reads them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lab.build.go import Tool
from lab.hosts import nfs


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="packages are built with dpkg-deb")
def test_both_packages_are_listed_with_their_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Built(Tool):
        @property
        def output(self) -> Path:
            return Path("/bin/true")

    monkeypatch.setattr(nfs, "NFS_TOOL", Built("nfs", ".", tmp_path))
    line = nfs.publish(tmp_path / "packages", "/mnt/shared/packages")
    assert line == "deb [trusted=yes] file:/mnt/shared/packages ./"
    listed = dict(
        field.split(": ", 1)
        for entry in (tmp_path / "packages/Packages").read_text().split("\n\n")
        for field in entry.splitlines()
        if field.startswith(("Filename", "Size", "Depends"))
    )
    archive = tmp_path / "packages" / listed["Filename"]
    assert archive.stat().st_size == int(listed["Size"])
    assert listed["Depends"] == "nfs-common"
    shown = subprocess.run(["dpkg-deb", "-c", archive], capture_output=True, text=True, check=True).stdout
    assert "./usr/sbin/exportfs -> /usr/sbin/busbar-lab-nfs" in shown
    assert "./lib/systemd/system/nfs-server.service" in shown
