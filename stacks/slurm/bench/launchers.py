"""busbw of one measurement by sbatch and by an MPIJob, in turn, on two hosts each of the lab's clusters.

python stacks/slurm/bench/launchers.py [--runs 5]    after `make up` and `make up-slurm`
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.project import ROOT
from lab.engine.environment import environment

NAME = "bench-launchers"
SLURM = ROOT / "stacks" / "slurm"
DEADLINE_SECONDS = 600
# The gate does not matter here: whatever is above zero passes.
VALIDATION = {
    **{"transport": "socket", "collectives": ["all_reduce"], "min_bytes": "1M", "max_bytes": "8M"},
    **{"iterations": 20, "warmup": 2, "expected_busbw_gbps": 0.001, "deadline_seconds": 300},
}


def configure(project: Path, section: str) -> None:
    """A stack file with this measurement beside that of the stack dev, of two hosts with GPUs."""
    stack = yaml.safe_load((project / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = stack["config"][section]
    found["validation"] = {**found["validation"], **VALIDATION}
    found["validation"].pop("expected_by_collective")
    for role in ("compute", "workers"):
        if role in found["hosts"]:
            found["hosts"][role] = found["hosts"][role][:2]
    (project / f"Pulumi.{NAME}.yaml").write_text(yaml.safe_dump(stack), encoding="utf-8")


def busbar(project: Path, *words: str) -> str:
    """The stdout of a command, which must have measured and passed."""
    done = subprocess.run(
        [sys.executable, "-m", "busbar", *words],
        cwd=project, env={**os.environ, **environment()},
        capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"busbar {' '.join(words)}: {done.stderr}{done.stdout}")
    return done.stdout


def by_sbatch() -> float:
    busbar(SLURM, "slurm", "validate", NAME)
    verdict = SLURM / ".busbar" / NAME / "lab" / "validate" / "verdict.json"
    return float(json.loads(verdict.read_text())["busbw_gbps"])


def by_mpijob() -> float:
    busbar(ROOT, "measure", NAME)
    return float(json.loads(busbar(ROOT, "history", NAME, "--json"))["runs"][-1]["result"]["busbw_gbps"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    wanted = parser.parse_args()
    kept = ROOT / ".busbar" / NAME
    kept.mkdir(parents=True, exist_ok=True)
    try:
        configure(ROOT, "busbar:cluster")
        configure(SLURM, "busbar-slurm:slurm")
        shutil.copy(ROOT / ".busbar" / "dev" / "kubeconfig", kept)
        found: dict[str, list[float]] = {"sbatch": [], "MPIJob": []}
        print("run   sbatch GB/s   MPIJob GB/s", flush=True)
        for number in range(1, wanted.runs + 1):
            found["sbatch"].append(by_sbatch())
            found["MPIJob"].append(by_mpijob())
            print(f"{number:3}   {found['sbatch'][-1]:11.3f}   {found['MPIJob'][-1]:11.3f}", flush=True)
        slurm, mpijob = (statistics.median(each) for each in found.values())
        print(f"median{slurm:11.3f}   {mpijob:11.3f}   sbatch / MPIJob: {slurm / mpijob:.2f}")
    finally:
        for project in (ROOT, SLURM):
            (project / f"Pulumi.{NAME}.yaml").unlink(missing_ok=True)
            shutil.rmtree(project / ".busbar" / NAME, ignore_errors=True)


if __name__ == "__main__":
    main()
