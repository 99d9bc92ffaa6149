"""A bring-up of 10, 110 and 440 workers in 10 pools: the real engine and program, simulated SSH hosts.

Prints for each size: wall time, what of it the installations alone take at that many at the same time, time
per worker, CPU time, the largest process, SSH connections (in all, most at once) and commands per worker,
requests to the Kubernetes API, the size of the state, and wall and CPU time of a second update with nothing
to do. The hosts (bench/simulated_site.py) are one process that answers every script after a set delay; the
operators and the measurement are off.

    python bench/scale.py [--workers 10 110 440] [--delay 2] [--parallel 50] [--dead-percent 1]
    python bench/scale.py --workers 110 --checkpoints    # and how much of it is writing the state
    python bench/scale.py --workers 440 --bare           # and the second update against a bare program's
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.project import ROOT, Measured, Project
from bench.simulated_setup import configuration, running, simulated

# As many resources as the site, with inputs that are known at once.
BARE_PROGRAM = """\
from pulumi_command import local
for number in range({count}):
    local.Command(f"bare-{{number}}", delete="true", stdin="x" * 900, add_previous_output_in_env=False)
"""
# The state is then written once, at the end: what a killed update has made is lost. For measuring only.
WITHOUT_CHECKPOINTS = {"PULUMI_EXPERIMENTAL": "true", "PULUMI_SKIP_CHECKPOINTS": "true"}
COLUMNS = (
    ("workers", 7), ("wall s", 7), ("installs", 8), ("ms/worker", 9), ("CPU s", 7), ("MiB", 5), ("conns", 6),
    ("at once", 7), ("cmds/worker", 11), ("API", 4), ("state kB", 8), ("kB/worker", 9), ("again s", 7),
    ("CPU", 6),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 110, 440])
    parser.add_argument("--delay", type=float, default=2.0, help="seconds per installation")
    parser.add_argument("--parallel", type=int, help="as `busbar up --parallel`; its default otherwise")
    parser.add_argument(
        "--dead-percent", type=float, default=0, help="workers that answer preflight and then no more"
    )
    parser.add_argument(
        "--rebooted-percent",
        type=float,
        default=0,
        help="workers that reboot between preflight and their step",
    )
    parser.add_argument("--checkpoints", action="store_true", help="measure once more without checkpoints")
    parser.add_argument("--bare", action="store_true", help="measure a bare program of as many resources too")
    wanted = parser.parse_args()
    print(" ".join(f"{name:>{width}}" for name, width in COLUMNS))
    for workers in wanted.workers:
        first = _measure(workers, wanted, {})
        if wanted.checkpoints:
            _compare(first, _measure(workers, wanted, WITHOUT_CHECKPOINTS))


def _measure(workers: int, wanted: argparse.Namespace, env: dict[str, str]) -> tuple[Measured, int]:
    """One bring-up, and a second update; returns the first, and the size of the state in bytes."""
    command = [sys.executable, "-m", "busbar", "up", "scale", "--yes", "--skip-preview"]
    command += ["--parallel", str(wanted.parallel)] if wanted.parallel else []
    dead = _first(workers, wanted.dead_percent)
    with tempfile.TemporaryDirectory(prefix="busbar-scale-") as name:
        folder = Path(name)
        config = configuration(folder, workers)
        rebooted = [] if dead else _first(workers, wanted.rebooted_percent)
        hosts = simulated(folder, config, delay=wanted.delay, dead=dead, rebooted=rebooted)
        project = Project(folder)
        project.configure("scale", config)
        with running(folder, hosts):
            first = (project.measure if dead else project.succeed)(*command, env=env)
            counts = json.loads((folder / "counts.json").read_text())
            state = project.state_bytes("scale")
            again = None if dead else project.succeed(*command)
        _print_row(workers, wanted.delay, first, counts, state, again)
        if wanted.bare and again:
            _compare_with_bare(project, folder, first.text.count(" created "), again)
    if dead:
        named = [host for host in dead if host in first.text]
        made = len(re.findall(r"worker-gpu-\d+ +created", first.text))
        print(f"{len(dead)} dead: exit {first.code}, {len(named)} named, {made} workers made")
        print(first.text[-5000:])
    return first, state


def _first(workers: int, percent: float) -> list[str]:
    return [f"gpu-{number}" for number in range(1, math.floor(workers * percent / 100) + 1)]


def _print_row(
    workers: int, delay: float, first: Measured, counts: dict[str, Any], state: int, again: Measured | None
) -> None:
    if not counts["most_installing"]:
        raise SystemExit(f"nothing was installed:\n{first.text[-6000:]}")
    # Server 1, then the other servers one by one, the load balancer, then the workers in waves.
    ideal = delay * (3 + 1 + math.ceil(workers / counts["most_installing"]))
    commands = (counts["worker_commands"]) / workers
    values = (
        str(workers), f"{first.seconds:.1f}", f"{ideal:.1f}", f"{1000 * first.seconds / workers:.0f}",
        f"{first.cpu_seconds:.1f}", f"{first.rss_mib:.0f}", str(counts["connections"]),
        str(counts["most_connections"]), f"{commands:.2f}", str(counts["api_requests"]),
        f"{state / 1e3:.0f}", f"{state / 1e3 / workers:.1f}", f"{again.seconds:.1f}" if again else "-",
        f"{again.cpu_seconds:.1f}" if again else "-",
    )  # fmt: skip
    row = zip(COLUMNS, values, strict=True)
    print(" ".join(f"{value:>{width}}" for (_, width), value in row), flush=True)


def _compare(first: tuple[Measured, int], without: tuple[Measured, int]) -> None:
    """Print what the checkpoints cost: two per step, of a state that grows from nothing to its whole size."""
    (whole, state), (bare, _) = first, without
    writes = 2 * whole.text.count(" created ")
    seconds = whole.cpu_seconds - bare.cpu_seconds
    print(
        f"checkpoints: {seconds:.1f} of {whole.cpu_seconds:.1f} CPU s; {writes} of them, "
        f"{1000 * seconds / writes:.0f} ms each at {state / 2e3:.0f} kB on average; "
        f"without them {bare.cpu_seconds:.1f} CPU s, {bare.rss_mib:.0f} MiB"
    )


def _compare_with_bare(project: Project, folder: Path, count: int, again: Measured) -> None:
    """Print the second update of a program of `count` Commands, and the ratio of `again` to it."""
    bare = folder / "bare"
    bare.mkdir()
    runtime = {"name": "python", "options": {"virtualenv": str(ROOT / ".venv")}}
    (bare / "Pulumi.yaml").write_text(json.dumps({"name": "bare", "runtime": runtime}))
    (bare / "__main__.py").write_text(BARE_PROGRAM.format(count=count))
    project.succeed("pulumi", "stack", "init", "bare", cwd=bare)
    command = ["pulumi", "up", "--stack", "bare", "--yes", "--skip-preview", "--suppress-progress"]
    project.succeed(*command, cwd=bare, env=WITHOUT_CHECKPOINTS)
    base = project.succeed(*command, cwd=bare)
    cpu, wall = again.cpu_seconds / base.cpu_seconds, again.seconds / base.seconds
    print(
        f"second update: {cpu:.2f} x the {base.cpu_seconds:.1f} CPU s, {wall:.2f} x the {base.seconds:.1f} s "
        f"of a bare program of {count} Commands; load {os.getloadavg()[0]:.0f} on {os.cpu_count()} CPUs",
        flush=True,
    )


if __name__ == "__main__":
    main()
