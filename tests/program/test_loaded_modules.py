"""The modules that a whole program loads: gates, reader and report only where a log is judged."""

from __future__ import annotations

import subprocess
import sys

MOST = 125
PROGRAM = """
import sys
from tests.program.answers import healthy
from tests.program.harness import run_program
from tests.support.clusters import site
run_program(site(), healthy(site()))
print(*(name for name in sys.modules if name.partition(".")[0] in ("busbar", "components", "stacks")))
"""


def test_a_whole_program_loads_no_gate_no_reader_and_few_modules() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "busbar.components.cluster" in loaded
    parts = ("checks", "diagnose", "log", "report", "expected.expectation")
    assert not loaded & {f"busbar.judge.nccl.{part}" for part in parts}
    assert len(loaded) <= MOST, sorted(loaded)
