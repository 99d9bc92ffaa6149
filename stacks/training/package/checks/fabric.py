"""Check on the transport: NCCL's messages of every start, judged by the gates of busbar.judge.nccl."""

from __future__ import annotations

from dataclasses import replace

from busbar.judge.nccl.checks.context import Check as NcclCheck
from busbar.judge.nccl.checks.context import Context as NcclContext
from busbar.judge.nccl.checks.context import build
from busbar.judge.nccl.checks.fabric import gdrdma, mnnvl, rails
from busbar.judge.nccl.checks.setup import nccl_version, plugin
from busbar.judge.nccl.checks.transport import transport
from busbar.judge.nccl.checks.warnings import warnings
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.reader import Proof
from busbar.judge.nccl.log.records import Banner, Preamble, Rank, Run
from stacks.training.package.checks.context import Context
from stacks.training.package.checks.result import Check, failed, not_required, passed, unknown
from stacks.training.package.log import Attempt

GATES = (transport, gdrdma, mnnvl, nccl_version, plugin, warnings)


def fabric(context: Context) -> Check:
    """Check that in every start each edge between hosts used the expected transport, on all rails."""
    want = context.expectation
    if want.backend == "gloo":
        if want.fabric.transport == "socket":
            return not_required("fabric.not_required", "gloo: TCP, as the pool's own measurement")
        return unknown("fabric.gloo", f"gloo uses TCP, expected {want.fabric.transport}")
    if not context.log.attempts:
        return unknown("fabric.no_messages", "the run never started: nothing is known of its transport")
    for number, attempt in enumerate(context.log.attempts, 1):
        if problem := _problem(attempt, context):
            return problem.model_copy(update={"reason": f"start {number}: {problem.reason}"})
    edges = context.log.attempts[-1].nccl.evidence.first_edge()
    starts = f"in all {len(context.log.attempts)} starts"
    return passed("fabric.proven", f"{want.fabric.transport} {starts}", edges.text if edges else None)


def _problem(attempt: Attempt, context: Context) -> Check | None:
    want, evidence = context.expectation, attempt.nccl.evidence
    silent = sorted(set(range(want.world_size)) - attempt.nccl_ranks)
    if silent or not evidence.speaks:
        # A line that shows TCP counts even if others are missing.
        tcp = next((c for c in _checks(attempt, context) if c.status == "fail"), None)
        whose = f"rank {silent[0]} and {len(silent) - 1} more" if silent else "any rank"
        return _of(tcp) if tcp else unknown("fabric.no_messages", f"no messages of NCCL from {whose}")
    up = evidence.initialized.get(want.world_size, set())
    if len(up) != want.world_size:
        reason = f"{len(up)} of {want.world_size} ranks came up (Init COMPLETE) in one communicator of all"
        return unknown("fabric.not_all_up", reason)
    checks = _checks(attempt, context)
    worst = next((c for status in ("fail", "unknown") for c in checks if c.status == status), None)
    return _of(worst) if worst else None


def _checks(attempt: Attempt, context: Context) -> list[NcclCheck]:
    of_training = _as_table(attempt, context)
    gates = (*GATES, rails) if context.expectation.fabric.rails else GATES
    return [gate(of_training) for gate in gates]


def _of(check: NcclCheck) -> Check:
    reason = f"{check.name}: {check.reason}"
    if check.status == "fail":
        return failed("fabric.failed", reason, check.evidence)
    return unknown("fabric.unknown", reason, check.evidence)


def _as_table(attempt: Attempt, context: Context) -> NcclContext:
    """The attempt as a table for busbar.judge.nccl, with the ranks that its messages must come from.

    The banner and the average mark a complete log, which the program's line counts have shown.
    """
    ranks = [
        Rank(rank=host.first_rank + i, group=0, pid=0, host=host.pod, device=i, gpu=host.device, line=0)
        for host in attempt.hosts
        for i in range(host.ranks)
    ]
    listed = Preamble(banner=Banner(0, 0, 0, "", 0), ranks=ranks)
    found = build(attempt.nccl, context.expectation.fabric)
    proof = Proof(own=attempt.nccl.evidence, loose=Evidence())
    return replace(found, tables={"training": [Run(listed, 0, avg="0")]}, proof=proof)
