"""The gates as a CTRF report (https://ctrf.io), which CI systems show as tests."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from busbar.judge.nccl.verdict import Status, Verdict

# CTRF has no "unknown"; its viewers show `other` as neither passed nor failed
STATUS: dict[Status, str] = {
    "pass": "passed",
    "fail": "failed",
    "unknown": "other",
    "not-required": "skipped",
}


def ctrf(verdict: Verdict) -> dict[str, Any]:
    """The verdict's gates as a CTRF object."""
    tests = [
        {
            "name": check.name,
            "status": STATUS[check.status],
            "duration": 0,
            "rawStatus": check.status,
            "message": check.reason,
            "suite": ["nccl"],
            "extra": {"code": check.code.value, "line": check.line, "evidence": check.evidence},
        }
        for check in verdict.checks
    ]
    count = {
        s: sum(t["status"] == s for t in tests) for s in ("passed", "failed", "skipped", "pending", "other")
    }
    now = int(time.time() * 1000)
    return {
        "reportFormat": "CTRF",
        "specVersion": "0.0.0",
        "results": {
            "tool": {"name": "busbar"},
            "summary": {"tests": len(tests), **count, "start": now, "stop": now},
            "tests": tests,
            "extra": {
                "verdict": verdict.verdict,
                "busbw_gbps": verdict.busbw_gbps,
                "log_sha256": verdict.log_sha256,
            },
        },
    }


def write_ctrf(verdict: Verdict, path: Path) -> None:
    """Write the CTRF report to PATH. Raises OSError."""
    path.write_text(json.dumps(ctrf(verdict), indent=1) + "\n", encoding="utf-8")
