"""A cold `busbar up` of the lab against the critical path of the same steps done by hand over SSH.

Takes the lab down before each part and at the end. The measurement is off in both: the end is a cluster whose
workers offer all GPUs and HCAs. Artifacts must be in the cache (`python -m lab build`). Needs root.

    python bench/critical_path.py
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.by_hand import ByHand, critical_path
from bench.lab_site import cluster, fresh_hosts, lab
from bench.project import ROOT, Project
from busbar import config
from lab.engine.environment import environment

STACK = "bench"
AIM = 1.2


def main() -> int:
    """Print the critical path by hand, the steps of `busbar up`, and the ratio; returns the exit code."""
    if os.geteuid() != 0:
        print("the lab needs root")
        return 1
    os.environ.update(environment())
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as name:
        try:
            by_hand = _by_hand(Path(name))
            whole = _product(Path(name))
        finally:
            lab("down")
    load = os.getloadavg()[0]
    print(f"\nbusbar up / by hand: {whole:.1f} / {by_hand:.1f} s = {whole / by_hand:.2f} (aim: {AIM})")
    print(f"load at the end {load:.1f} on {os.cpu_count()} CPUs")
    return 0


def _by_hand(folder: Path) -> float:
    fresh_hosts()
    steps = ByHand(config.load(cluster(), root=ROOT), ROOT, folder)
    asyncio.run(steps.run())
    path = critical_path(steps.steps)
    print(f"by hand over SSH: {path[-1].ended:.1f} s; each step waited for the one above it")
    for step in path:
        print(f"  {step.began:6.1f} s  {step.ended - step.began:6.1f} s    {step.name}")
    others = [step for step in steps.steps.values() if step not in path]
    print("  beside it: " + ", ".join(f"{step.name} {step.ended - step.began:.1f} s" for step in others))
    return path[-1].ended


def _product(folder: Path) -> float:
    """Seconds of `busbar up`, which prints when each step ended and how long it took."""
    fresh_hosts()
    project = Project(folder)
    project.configure(STACK, cluster())
    done = project.succeed(sys.executable, "-m", "busbar", "up", STACK, "--yes", "--skip-preview")
    print(done.text)
    return done.seconds


if __name__ == "__main__":
    sys.exit(main())
