"""The outputs of stacks/slurm as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from busbar.judge.tables import notes
from busbar.outputs.summary import pool_notes, pools_of, tables
from stacks.slurm.package.outputs import as_core


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs for a terminal; `folder` is where reports were kept. Raises ValueError."""
    found = as_core(outputs)
    pools = pools_of(found)

    def listed() -> Iterator[tuple[str, str]]:
        yield "controller", str(found.get("controller"))
        for name, members in (found.get("partitions") or {}).items():
            yield "partition", f"{name}: {', '.join(members)}"
        if versions := found.get("versions"):
            yield "versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        yield from pool_notes(pools, folder)

    return Group(*tables(found, pools, folder), *notes(listed()))
