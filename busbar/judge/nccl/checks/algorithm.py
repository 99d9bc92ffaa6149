"""The algorithm that NCCL used for all_reduce, as far as the log shows it."""

from __future__ import annotations

import re

from busbar.judge.nccl.expected.system import BOARD_GPUS, System
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.records import LogLine, Run

# NVLS since 2.17, its trees between hosts since 2.18 (release notes)
FIRST_NVLS = {1: (2, 17), 2: (2, 18)}
# types that NVLS does not add up: ncclNvlsSupported (NCCL src/include/device.h)
NOT_NVLS_TYPES = re.compile(r"u?int8|char|fp?8")


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version: 2.19.3+cuda12.2 -> (2, 19, 3)."""
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:3])


def algorithm_used(evidence: Evidence, runs: list[Run], system: System) -> str | None:
    """The algorithm (ring, tree or nvls) that the log proves for RUNS; None if it does not.

    A board whose NVSwitch should reduce, and does not, is still held against NVLS.
    """
    if nvls_lost(evidence, runs, system) is not None:
        return None
    chosen = [a for a in evidence.algorithms if a.startswith("AllReduce ")]
    if chosen:
        largest = max(chosen, key=lambda a: evidence.algorithm_sizes.get(a, 0))
        return _kind(largest.split()[1])
    asked = _setting(evidence, "NCCL_ALGO")
    if asked is not None:
        return _asked(asked) if asked else None
    without = set(evidence.nvls_channels) == {"0"} and not _should_reduce(runs, system)
    if without or _without_nvls(evidence, system) or not all(_reduced_by_nvls(run) for run in runs):
        return "ring"
    # a log without the environment may hide NCCL_ALGO
    shown = evidence.environment and evidence.nvls_channels and "0" not in evidence.nvls_channels
    return "nvls" if shown else None


def nvls_lost(evidence: Evidence, runs: list[Run], system: System | None) -> LogLine | None:
    """A line that says that the GPUs of RUNS do not reduce in their NVSwitch, although they should."""
    if system is None or not _should_reduce(runs, system) or _without_nvls(evidence, system):
        return None
    asked = _setting(evidence, "NCCL_ALGO")
    if asked is not None and _asked(asked) != "nvls":
        return None
    # 0 channels in a log without the environment may hide NCCL_NVLS_ENABLE
    no_channels = evidence.nvls_channels.get("0") if evidence.environment else None
    return evidence.multicast.get("not available") or no_channels


def _should_reduce(runs: list[Run], system: System) -> bool:
    """Return whether all GPUs of boards took part whose NVSwitch can reduce."""
    whole = all(len(run.preamble.ranks) >= BOARD_GPUS * system.domains for run in runs)
    return system.reduces_in_nvswitch and whole


def _without_nvls(evidence: Evidence, system: System) -> bool:
    """Whether a setting or an old NCCL leaves NVLS out."""
    old = any(release(v) < FIRST_NVLS[min(system.domains, 2)] for v in evidence.versions)
    return old or _setting(evidence, "NCCL_NVLS_ENABLE") == "0"


def _setting(evidence: Evidence, name: str) -> str | None:
    """The value of NAME; "" if processes differ; None if it is not printed."""
    found = {e.partition("=")[2] for e in evidence.environment if e.startswith(f"{name}=")}
    return found.pop() if len(found) == 1 else "" if found else None


def _asked(value: str) -> str | None:
    """RING | Tree,Ring | ^NVLS,NVLSTree | allreduce:ring;allgather:tree"""
    parts = [part.rpartition(":") for part in value.lower().split(";")]
    names = next((names for function, _, names in parts if function in ("", "allreduce")), "")
    kinds = {_kind(name) for name in names.removeprefix("^").split(",")}
    if names.startswith("^"):
        return "ring" if "nvls" in kinds else None
    if kinds == {"ring", "tree"}:
        return "ring"
    return kinds.pop() if len(kinds) == 1 else None


def _kind(name: str) -> str | None:
    name = name.strip().lower()
    return "nvls" if name.startswith("nvls") else name if name in ("ring", "tree") else None


def _reduced_by_nvls(run: Run) -> bool:
    row = run.largest_row
    return row.redop in ("sum", None) and NOT_NVLS_TYPES.match(row.type) is None
