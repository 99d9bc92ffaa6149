"""Programs of Debian's packages, unpacked into the cache: nothing is installed on this machine or started."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from lab.images.tree import once
from lab.paths import cache
from lab.steps import LabError

PACKAGES = ("prometheus-alertmanager", "prometheus-node-exporter")
# Only for tests: promtool, and a Prometheus that reads the files of busbar's objects without a cluster.
PROMETHEUS = "prometheus"


def ensure(package: str) -> Path:
    """The folder with the files of one package. Raises LabError where apt has none."""
    folder = cache() / f"debian-{package}"
    with once(folder) as stage:
        if stage:
            with tempfile.TemporaryDirectory() as downloads:
                _download(package, downloads)
                [archive] = Path(downloads).glob("*.deb")
                stage.mkdir(parents=True)
                subprocess.run(["dpkg-deb", "-x", archive, stage], check=True, timeout=120)
    return folder


def libraries(program: Path) -> dict[str, Path]:
    """The shared libraries of a program and their loader: path in an image -> file of this machine."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=60, check=True)
    words = (word for line in listed.stdout.splitlines() for word in line.split())
    return {word.lstrip("/"): Path(word).resolve() for word in words if word.startswith("/")}


def _download(package: str, folder: str) -> None:
    if not shutil.which("apt-get"):
        raise LabError(f"there is no apt-get to download Debian's package {package}")
    # It would warn as root that the user _apt cannot write there.
    words = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package]
    for update in (True, False):
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0:
            return
        if update:  # a machine that has no package lists yet
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, timeout=300, check=False)
    raise LabError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
