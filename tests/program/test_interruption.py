"""The engine ends a program that still runs with SIGINT, and shows what it prints then."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.program.harness import ROOT

OTHERS = [str(file.relative_to(ROOT)) for file in sorted(ROOT.glob("stacks/*/__main__.py"))]
PROGRAMS = ["__main__.py", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
# The program up to the point where the engine's part begins, then what that part does: wait, or fail.
WAITING = """
import runpy, signal, sys, time, pulumi
# Tests that run in the background of a shell ignore SIGINT, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)
pulumi.run = lambda main: (print("ready", flush=True), {then})
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def started(program: str, then: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING.format(then=then), str(ROOT / program)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def wait_asleep(process: subprocess.Popen[str]) -> None:
    """Wait until it waits: Python loses a KeyboardInterrupt that comes while it collects garbage."""
    ends = time.monotonic() + 60
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_the_engine_ends_prints_no_traceback(program: str) -> None:
    process = started(program, "time.sleep(300)")
    wait_asleep(process)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=120)
    assert (process.returncode, printed) == (-signal.SIGINT, "")


def test_any_other_exception_is_printed() -> None:
    _, printed = started("__main__.py", "1 / 0").communicate(timeout=120)
    assert "ZeroDivisionError" in printed
