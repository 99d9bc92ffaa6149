"""Diagnoses from the log as a whole: what no single line says (data: signs.yaml)."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict

from busbar.nccl.checks.context import Context
from busbar.nccl.data import read_yaml
from busbar.nccl.log.records import Run, number
from busbar.nccl.log.sidecar import several_programs
from busbar.nccl.verdict import Check, Diagnosis


class Sign(BaseModel):
    """One entry of signs.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    severity: Literal["fatal", "degraded", "note"]
    meaning: str
    cause: str
    next: str


@cache
def signs() -> dict[str, Sign]:
    """All signs by name."""
    return {entry["name"]: Sign(**entry) for entry in read_yaml("busbar.nccl.diagnose", "signs.yaml")}


def read_signs(context: Context, checks: list[Check]) -> list[Diagnosis]:
    """Signs that hold for this log, with the evidence of the gate that shows each."""
    by_name = {c.name: c for c in checks}
    failed = {c.name for c in checks if c.status == "fail"}
    return [
        _diagnosis(signs()[name], by_name[gate])
        for name, gate, holds in _conditions(context, by_name, failed)
        if holds
    ]


def _one_rank(run: Run) -> bool:
    """A table of rank 0 alone: busbw is 0 in every row."""
    return bool(run.rows) and not any(number(r.out_of_place.busbw) for r in run.rows)


def _conditions(context: Context, by_name: dict[str, Check], failed: set[str]) -> list[tuple[str, str, bool]]:
    """(sign, gate whose evidence shows it, whether it holds)."""
    log, evidence, want = context.log, context.evidence, context.expectation
    rows = any(r.rows for r in log.runs)
    alone = any(several_programs(r) or _one_rank(r) for r in log.runs)
    across = (context.domains or 2) > 1
    rdma = want.transport in ("rdma", "gpudirect-rdma")
    value = by_name["busbw"]
    tcp = rdma and across and ("Socket" in evidence.network_names() or "Socket" in evidence.networks)
    shm = any(e.kind == "SHM" for e in evidence.edges.values())
    slow = value.status == "fail" and "below the floor" in value.reason
    return [
        ("hang", "source", not rows and log.dangling is not None and bool(log.dangling.ranks)),
        ("mpi-not-effective", "ranks", alone),
        (
            "no-transport-evidence",
            "transport",
            rows and across and not evidence.via and not evidence.networks,
        ),
        ("socket-fallback", "transport", tcp),
        ("no-gpudirect", "gdrdma", "gdrdma" in failed),
        ("rail-missing", "rails", "rails" in failed),
        ("half-rate", "busbw", slow and "of line rate" in value.reason),
        ("below-floor", "busbw", slow and "of line rate" not in value.reason and not tcp),
        ("shared-memory-inside-a-host", "transport", shm and (want.nvlink_gbps or 0) > 0),
        ("not-compared", "correctness", "not compared (-c 0)" in by_name["correctness"].reason),
        ("beginning-missing", "source", rows and any(r.preamble.banner is None for r in log.runs)),
        ("wrong-size", "ranks", "ranks" in failed and "asked for" in by_name["ranks"].reason and not alone),
    ]


def _diagnosis(sign: Sign, gate: Check) -> Diagnosis:
    return Diagnosis(**sign.model_dump(), line=gate.line or 0, evidence=gate.evidence or gate.reason)
