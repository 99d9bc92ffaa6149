"""How many lines of outputs `pulumi up` prints, with the real engine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from busbar.config import load
from busbar.outputs import build_outputs
from busbar.outputs.pool import summarize
from tests.support.clusters import site
from tests.support.engine import throwaway_project
from tests.support.verdicts import passing

LIMIT = 40
SECONDS = 300

PROGRAM = """
    import json, pathlib
    import pulumi

    for name, value in json.loads(pathlib.Path("outputs.json").read_text()).items():
        pulumi.export(name, value)
"""


def sweep() -> dict[str, Any]:
    """A pass of two collectives from 1 KiB to 16 GiB."""
    verdict = passing()
    [result] = verdict["collectives"].values()
    rows = [{**result["curve"][0], "size_bytes": 2**power} for power in range(10, 35)]
    curve = {**result, "curve": rows}
    return {**verdict, "collectives": {"all_reduce": curve, "all_gather": curve}}


def printed(folder: Path, workers: int) -> list[str]:
    """The outputs of a site with one pool, as an update prints them."""
    cluster = site(
        load_balancers=2, workers={"h100": workers}, nfs_server={"host": "lb-1", "folder": "/srv/busbar"}
    )
    operators = ("k3s", "gpu_operator", "network_operator", "mpi_operator")
    outputs = build_outputs(
        load(cluster),
        versions=dict.fromkeys(operators, "v1"),
        facts={},
        results={"h100": summarize(sweep())},
    )
    environment = throwaway_project(folder, PROGRAM)
    (folder / "outputs.json").write_text(json.dumps(outputs))
    for words in (("stack", "init", "dev"), ("up", "--yes", "--skip-preview", "--stack", "dev")):
        done = subprocess.run(
            ["pulumi", *words, "--non-interactive", "--color", "never"],
            cwd=folder, env=environment, text=True, capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.partition("\nOutputs:\n")[2].partition("\nResources:\n")[0].splitlines()


@pytest.mark.parametrize("workers", [2, 60])
def test_the_outputs_take_few_lines_however_many_workers_and_sizes_there_are(
    tmp_path: Path, workers: int
) -> None:
    lines = printed(tmp_path / "project", workers)
    assert any(line.strip().startswith("details") for line in lines)
    assert len(lines) <= LIMIT
