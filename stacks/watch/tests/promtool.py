"""promtool: on PATH, or that of Debian's package, unpacked once into the lab's cache."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from lab.steps import LabError
from stacks.watch.lab import debian


@cache
def promtool() -> str:
    """The program. Skips the test where it is missing and apt has no package with it."""
    if found := shutil.which("promtool"):
        return found
    try:
        return str(debian.ensure(debian.PROMETHEUS) / "usr" / "bin" / "promtool")
    except LabError as error:
        pytest.skip(f"promtool is not on PATH: {error}")


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool(), *words], capture_output=True, text=True, timeout=300, check=False)
