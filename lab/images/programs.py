"""The C programs of the lab, compiled with the image's own release."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab.build.recipe import key
from lab.images import tree
from lab.paths import LAB
from lab.steps import locked, step

NCCL_SOURCES = LAB / "nccl"
PAUSE_SOURCE = tree.HERE / "pause.c"
NCCL_PROGRAMS = (
    "all_reduce_perf",
    "all_gather_perf",
    "reduce_scatter_perf",
    "broadcast_perf",
    "alltoall_perf",
    "sendrecv_perf",
)

_SCRIPT = """
make -C /src BUILD=/out/nccl >&2
cc -Os -Wall -Werror -static -s -o /out/pause /pause/pause.c
strip /out/nccl/all_reduce_perf
"""


def recipe() -> str:
    """The hash of the sources and of what compiles them."""
    return key(NCCL_SOURCES, PAUSE_SOURCE, _SCRIPT, *tree.packages(), *tree.COMPILER_PACKAGES)


def ensure(work: Path) -> Path:
    """A folder with `pause` and `nccl/*_perf`. Raises LabError with the compiler's output."""
    result = work / f"programs-{recipe()}"
    with locked(work / "locks" / "programs"):
        if result.is_dir():
            return result
        base, layer = tree.ensure(work), tree.compiler(work)
        stage, scratch = result.with_name(result.name + ".new"), work / "compile"
        for folder in (stage, scratch):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        with step("compile the simulators of nccl-tests, and pause"):
            tree.in_tree(
                [base, layer],
                scratch,
                _SCRIPT,
                log=work / "logs" / f"{result.name}.log",
                binds=[(NCCL_SOURCES, "/src"), (tree.HERE, "/pause"), (stage, "/out")],
            )
        shutil.rmtree(scratch)
        os.replace(stage, result)
    return result
