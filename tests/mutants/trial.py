"""Runs the tests of an area in a copy of the checkout, with and without a mutant."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from seeds import AREAS, PROJECT, Mutant

OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
OUTPUT = "mutants-output.txt"
# A test that a mutant sends into an endless loop. In CPU time: a busy machine must not catch mutants.
CPU_FACTOR, CPU_SECONDS = 5, 30
# A test that a mutant makes wait for ever.
WALL_SECONDS = 900

Outcome = Literal["caught", "timed out", "survived"]
# Python compiles a file anew when its time (whole seconds) or size changed: each mutant has its own time.
_times = itertools.count(1)


def copy_of_checkout(folder: str) -> Path:
    """A copy of all files that git does not ignore: the checkout never changes."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        # Links to folders too: busbar/host is one.
        if (PROJECT / name).is_file() or (PROJECT / name).is_symlink():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, copy / name, follow_symlinks=False)
    return copy


def baseline(copy: Path, area: str) -> float:
    """CPU seconds of the tests of AREA without a mutant. Raises RuntimeError if one fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if _run(copy, area, WALL_SECONDS):
        raise RuntimeError(f"the tests of {area} fail without a mutant:\n{(copy / OUTPUT).read_text()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def attempt(copy: Path, area: str, mutant: Mutant, seconds: float) -> Outcome:
    """Run the tests, which take CPU SECONDS without the mutant, until one fails."""
    path = copy / mutant.file
    path.write_text(mutant.code)
    os.utime(path, (time := next(_times), time))
    try:
        code = _run(copy, area, round(CPU_SECONDS + CPU_FACTOR * seconds))
    finally:
        shutil.copy2(PROJECT / mutant.file, path)
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timed out"
    return "caught" if code else "survived"


def _run(copy: Path, area: str, cpu_seconds: int) -> int:
    """The exit code of pytest in COPY; its output is in OUTPUT."""
    settings = AREAS[area]
    deselected = [f"--deselect={name}" for name in settings.get("without", [])]
    pytest = ["prlimit", f"--cpu={cpu_seconds}", sys.executable, "-m", "pytest", *OPTIONS]
    environment = dict(os.environ)
    environment.pop("CI", None)  # with CI=true, tests of data beside the checkout fail; here they are skipped
    with (copy / OUTPUT).open("w") as out:
        process = subprocess.Popen(
            [*pytest, *deselected, *settings["tests"]],
            cwd=copy, env=environment, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(WALL_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()
