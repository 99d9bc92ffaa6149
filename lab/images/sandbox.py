"""The NCCL image's programs on this machine, without containers: for tests, and for a look."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from lab.images import programs, tree

_PREPARE = """
export PATH=/nccl:/usr/sbin:/usr/bin:/sbin:/bin OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cp /image/openmpi-mca-params.conf /etc/openmpi/
"""


def shell(work: Path, script: str, *, deadline: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a shell script where `mpirun` and the programs are on PATH; builds them first. Needs root.

    Raises LabError when something cannot be built, subprocess.TimeoutExpired past the deadline (seconds).
    """
    built = programs.ensure(work)
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        upper = Path(scratch, "upper")
        upper.mkdir()
        binds = [(built / "nccl", "/nccl"), (tree.HERE / "nccl", "/image")]
        with tree.overlay([tree.ensure(work)], upper, binds) as enter:
            return subprocess.run(
                [*enter, _PREPARE + script], capture_output=True, text=True, timeout=deadline, check=False
            )
