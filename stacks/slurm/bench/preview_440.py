"""`pulumi preview` of a Slurm cluster against that of a K3s cluster with as many GPU hosts, in one run.

python stacks/slurm/bench/preview_440.py [HOSTS [POOLS]]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.preview_440 import Bench, Preview, print_table
from bench.project import ROOT
from stacks.slurm.package.config import KEY, PROJECT
from tests.support.clusters import site


def main() -> None:
    hosts, pools = (int(each) for each in [*sys.argv[1:], *("440", "10")[len(sys.argv) - 1 :]])
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as folder:
        bench = Bench(Path(folder))
        _preview(bench, 1, 1)
        bench.busbar(1, 1)
        slurm = _preview(bench, hosts, pools)
        core = bench.busbar(hosts, pools)
    print_table(slurm, core)
    wall, cpu = slurm.seconds / core.seconds, slurm.cpu_seconds / core.cpu_seconds
    print(f"Slurm / K3s: wall x {wall:.2f}, CPU x {cpu:.2f}")


def _preview(bench: Bench, hosts: int, pools: int) -> Preview:
    project = bench.project(PROJECT, main=str(ROOT / "stacks" / "slurm"))
    config = {f"{PROJECT}:{KEY}": configuration(hosts, pools)}
    return bench.preview(f"Slurm, {hosts} hosts", project, f"slurm-{hosts}", config)


def configuration(hosts: int, pools: int) -> dict[str, Any]:
    """The site that the core's benchmark has, with its servers as controller and login hosts."""
    names = [f"pool-{number}" for number in range(min(pools, hosts))]
    made = site(workers={name: len(range(index, hosts, len(names))) for index, name in enumerate(names)})
    controller, *login = made["hosts"]["servers"]
    return {
        **{key: made[key] for key in ("name", "ssh", "pools")},
        "hosts": {"controller": controller, "login": login, "compute": made["hosts"]["workers"]},
        "accounting": {"enabled": True},
    }


if __name__ == "__main__":
    main()
