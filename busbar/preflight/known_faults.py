"""Kernels and drivers with a known fault that matters to NCCL, each with its source and the date of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from busbar.hosts.finding import Check, warning
from busbar.preflight.report import Report


@dataclass(frozen=True, kw_only=True)
class KnownFault:
    """`kernel`, `driver`, `arch`: patterns of the whole text; empty: any. `needs_stray_cma`: the host's own
    memory shows whether it has the fault."""

    what: str
    fix: str
    source: str
    date: str
    kernel: str = ""
    driver: str = ""
    arch: str = ""
    needs_stray_cma: bool = False


_ENOMEM = "NCCL fails with ENOMEM whatever the limit of locked memory is"
_KHO = "boot with kho=off (where kexec handover is not used), or with a kernel 6.17"

KNOWN_FAULTS = (
    KnownFault(
        kernel=r"7\.0\.0-\d+-nvidia",
        what=_ENOMEM,
        fix=_KHO,
        source="NVIDIA/NV-Kernels#591, MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks#14",
        date="2026-09-14",
        needs_stray_cma=True,
    ),
    KnownFault(
        kernel=r"7\.0\.0-31-generic",
        arch="aarch64",
        what=_ENOMEM,
        fix=_KHO,
        source="MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#259",
        date="2026-09-12",
        needs_stray_cma=True,
    ),
)


def check_known_faults(report: Report) -> Iterator[Check]:
    """Findings about the kernel and driver of a worker that are in the list."""
    driver = report.gpus.list[0].driver if report.gpus and report.gpus.list else ""
    for each in KNOWN_FAULTS:
        texts = ((each.kernel, report.kernel), (each.driver, driver), (each.arch, report.arch))
        if not all(re.fullmatch(pattern or ".*", text) for pattern, text in texts):
            continue
        if each.needs_stray_cma and report.stray_cma_bytes == 0:
            continue
        about = f"driver {driver}" if each.driver else f"kernel {report.kernel}"
        yield warning(f"{about}: {each.what} ({each.source}, {each.date})", each.fix)
