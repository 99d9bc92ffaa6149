"""A measurement by sbatch in pods that loses its log has no verdict."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.slurm_k8s.tests.lab.conftest import BUSBAR, SLURM, Slurm, until
from tests.support.lab import PROJECT, Lab, read_until

pytestmark = pytest.mark.drill

IDLE = ["idle", "idle"]


def with_cluster(lab: Lab, folder: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """A copy of the stack's file beside one of its cluster's that is changed."""
    for name in ("Pulumi.yaml", ".lab", "lab"):
        (folder / name).symlink_to(PROJECT / name)
    shutil.copyfile(lab.config_with(change), folder / "Pulumi.dev.yaml")
    (folder / "slurm_k8s").mkdir()
    shutil.copyfile(SLURM / "Pulumi.yaml", folder / "slurm_k8s" / "Pulumi.yaml")
    stack = yaml.safe_load((SLURM / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
    stack["config"]["busbar-slurm_k8s:slurm_k8s"]["cluster_folder"] = ".."
    path = folder / "slurm_k8s" / "Pulumi.dev.yaml"
    path.write_text(yaml.safe_dump(stack), encoding="utf-8")
    return str(path)


def test_without_the_log_there_is_no_verdict(lab: Lab, slurm: Slurm, tmp_path: Path) -> None:
    def longer(cluster: dict[str, Any]) -> None:
        cluster["validation"]["iterations"] = 100

    words = (*BUSBAR, "measure", with_cluster(lab, tmp_path, longer), "--json")
    with subprocess.Popen(
        words, cwd=PROJECT, env=lab.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as measuring:
        read_until(measuring.stderr, "measuring all_reduce")
        batch = slurm("squeue -h -t running -o %B")
        lab.kubectl(f"delete pod slurm-worker-{batch} -n slurm --grace-period=0 --force")
        stdout, stderr = measuring.communicate(timeout=200)
    print(stdout, stderr)
    assert measuring.returncode == 2, stdout + stderr
    found = json.loads(stdout)["pools"]["lab"]
    assert found["verdict"] == "unknown" and found["reasons"], found
    until(lambda: [*slurm.nodes().values()] == IDLE, 120, "both nodes are idle")
