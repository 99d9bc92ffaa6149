"""How long the main job takes on this machine: from nothing to outputs, and again with nothing to do.

Takes the lab down first and leaves it up. Artifacts must be in the cache (`python -m lab build`), or the
first figure is that of building them. Needs root.

    python bench/bring_up.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
LAB = (sys.executable, "-m", "lab")
DEADLINE_SECONDS = 1800


def main() -> int:
    """Print one line a figure; returns the exit code."""
    if os.geteuid() != 0:
        print("the lab needs root")
        return 1
    _run("down", *LAB, "down")
    cold = _run("make up, from nothing to outputs", *LAB, "bringup")
    again = _run("make up, nothing to do", *LAB, "bringup")
    from lab.engine.environment import environment

    os.environ.update(environment())
    noop = _run(
        "pulumi up, nothing to do", "pulumi", "up", "--yes", "--skip-preview", "--non-interactive",
        "--stack", "dev", "--expect-no-changes", "--suppress-progress",
    )  # fmt: skip
    print(f"{'cold / nothing to do':<40} {cold / again:6.1f} x (make), {cold / noop:6.1f} x (pulumi)")
    return 0


def _run(what: str, *command: str) -> float:
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    seconds = time.monotonic() - began
    if done.returncode != 0:
        raise SystemExit(f"{what} failed ({done.returncode}):\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    print(f"{what:<40} {seconds:6.1f} s", flush=True)
    return seconds


if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))
    sys.exit(main())
