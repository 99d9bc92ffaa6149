"""Kernels and drivers with a known fault that matters to NCCL, each with its source and the date of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from busbar.hosts.finding import Check, warning
from busbar.preflight.report import Report


class KnownFault(NamedTuple):
    """`pattern`: of the whole text "kernel RELEASE ARCHITECTURE" or "driver VERSION". `needs_stray_cma`: the
    host's memory shows whether it has the fault."""

    pattern: str
    what: str
    fix: str
    source: str
    date: str
    needs_stray_cma: bool = False


KNOWN_FAULTS = (
    KnownFault(
        r"kernel 7\.0\.0-(\d+-nvidia .*|31-generic aarch64)",
        "NCCL fails with ENOMEM whatever the limit of locked memory is",
        "boot with kho=off (where kexec handover is not used), or with a kernel 6.17",
        "NVIDIA/NV-Kernels#591, MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#259",
        "2026-09-14",
        needs_stray_cma=True,
    ),
)


def check_known_faults(report: Report) -> Iterator[Check]:
    """Findings about the kernel and the driver of a worker that are in the list."""
    drivers = {f"driver {gpu.driver}" for gpu in (report.gpus.list if report.gpus else ())}
    for text in (f"kernel {report.kernel} {report.arch}", *sorted(drivers)):
        for each in KNOWN_FAULTS:
            is_absent = each.needs_stray_cma and report.stray_cma_bytes == 0
            if re.fullmatch(each.pattern, text) and not is_absent:
                yield warning(f"{text}: {each.what} ({each.source}, {each.date})", each.fix)
