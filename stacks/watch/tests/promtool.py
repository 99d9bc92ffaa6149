"""promtool: on PATH, or Debian's, unpacked once into the lab's cache. Nothing is installed or started."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

from lab import paths


@cache
def promtool() -> str:
    """The program. Skips the test where it is missing and there is no apt-get to fetch it."""
    if found := shutil.which("promtool"):
        return found
    program = paths.tools() / "promtool"
    program.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{program}.lock"):
        if not program.exists():
            _fetch(program)
    return str(program)


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """`promtool WORDS`."""
    return subprocess.run([promtool(), *words], capture_output=True, text=True, timeout=300, check=False)


def _fetch(program: Path) -> None:
    if not shutil.which("apt-get"):
        pytest.skip("promtool is not on PATH, and there is no apt-get to fetch Debian's package prometheus")
    with tempfile.TemporaryDirectory() as folder:
        if _download(folder).returncode:  # a machine that has no package lists yet
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, timeout=300, check=False)
            done = _download(folder)
            if done.returncode:
                pytest.skip(f"promtool: apt-get download prometheus failed: {done.stderr.strip()}")
        [package] = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, f"{folder}/root"], check=True, timeout=120)
        fresh = program.with_name(".promtool.new")
        shutil.copy2(f"{folder}/root/usr/bin/promtool", fresh)
        fresh.replace(program)


def _download(folder: str) -> subprocess.CompletedProcess[str]:
    # As root it would warn that the user _apt cannot write there.
    words = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "prometheus"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
