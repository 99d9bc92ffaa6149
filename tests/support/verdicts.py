"""Verdicts as busbar.judge.nccl.verdict writes them, and the records of their measurements."""

from typing import Any

from busbar import __version__
from busbar.judge.archive import Record
from busbar.judge.nccl.expected import JUDGE


def passing(busbw_gbps: float = 390.28, expected_gbps: float = 400.0) -> dict[str, Any]:
    """A pass on two hosts with eight rails each."""
    result = {
        "busbw_gbps": busbw_gbps,
        "expected_gbps": expected_gbps,
        "floor_gbps": 0.9 * expected_gbps,
        "ceiling_gbps": 480.0,
        "fraction": busbw_gbps / expected_gbps,
        "passed": True,
    }
    point = {
        "size_bytes": 8589934592,
        "count": 2147483648,
        "type": "float",
        "redop": "sum",
        "out_of_place": {"time_us": 41270.0, "algbw_gbps": 208.14, "busbw_gbps": busbw_gbps, "wrong": 0},
        "in_place": {"time_us": 41268.0, "algbw_gbps": 208.15, "busbw_gbps": busbw_gbps, "wrong": 0},
    }
    return {
        "schema": 3,
        "verdict": "pass",
        **result,
        "reasons": [],
        "collectives": {"all_reduce": {**result, "curve": [point]}},
        "ranks": 16,
        "nodes": 2,
        "transport": "gpudirect-rdma",
        "channels": {"NET/IBext/N/GDRDMA": 704},
        "rails_per_host": {"gpu-1": 8, "gpu-2": 8},
        "nccl_version": "2.28.3",
        "plugin": "IBext_v8",
        "checks": [{"name": "busbw", "status": "pass", "reason": "390.28 of 400 GB/s", "line": 84}],
        "log_sha256": "ab" * 32,
        "log_bytes": 123456,
        "simulated": None,
        "judge": JUDGE,
        "busbar_version": __version__,
    }


def failing(reason: str = "busbw 46.9 GB/s is below the floor of 360 GB/s", **values: Any) -> dict[str, Any]:
    """A fail with one reason."""
    verdict = passing(busbw_gbps=46.9)
    return {**verdict, "verdict": "fail", "passed": False, "reasons": [reason], **values}


def unknown(reason: str = "the launcher never started") -> dict[str, Any]:
    """No evidence: nothing was measured."""
    numbers = ("busbw_gbps", "expected_gbps", "floor_gbps", "ceiling_gbps", "fraction", "ranks", "nodes")
    return {
        **{"schema": 3, "verdict": "unknown", "passed": False, "reasons": [reason]},
        **{"collectives": {}, "transport": "unknown", "checks": [], **dict.fromkeys(numbers)},
    }


def record(number: int = 1, *nodes: str, **more: Any) -> Record:
    """The record of the NUMBER-th measurement of a pool: that of an update, a second after the one before."""
    about = {"pool": "h100", "kind": "update", "folder": ".busbar/site/h100", "nodes": nodes, **more}
    at = f"2026-11-23T01:02:{number:02}Z"
    return Record.model_validate({"job_uid": f"u-{number}", "measured_at": at, "expectation": {}, **about})
