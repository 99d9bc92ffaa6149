"""Slurm's state of a job and of nodes, in the terms of squeue(1) and sinfo(1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
# Final states of a job that say nothing of the fabric.
INTERRUPTED = ("CANCELLED", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED", "DEADLINE")
UNUSABLE = ("down", "drain", "fail", "inval", "unknown", "boot", "power", "maint", "reserved")


@dataclass(frozen=True)
class Status:
    """The state of a job in Slurm. `nodes`: the nodes that start no jobs, and why."""

    known: bool
    state: str = ""
    reason: str = ""
    batch_host: str = ""
    exit_code: str = ""
    restarts: str = "0"
    submitted: str = ""
    nodes: Mapping[str, Mapping[str, str]] | None = None

    @property
    def ended(self) -> bool:
        """Whether the job has ended and will write no more."""
        return not self.known or self.state.split("+")[0] not in (*WAITING, *RUNNING)


def why_unusable(found: Mapping[str, str] | None) -> str:
    """Slurm's reason why a node starts no jobs; empty if it does."""
    if found is None:
        return "not known to Slurm"
    state = found["state"].lower()
    bad = state.endswith("*") or any(each in state for each in UNUSABLE)
    return f"{found['state']}{': ' if found['reason'] else ''}{found['reason']}" if bad else ""
