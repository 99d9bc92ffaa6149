"""The rows on a training run: the proof that stacks/training has kept, judged again by that capability."""

from __future__ import annotations

from typing import Any

from busbar.text import counted, listed
from stacks.accept.package.evidence import Untrusted
from stacks.accept.package.rows.kinds import ACCEPTED, Finding, Question, but, kind, workers_of

# The checks of stacks/training on a checkpoint: it was written, and all ranks have resumed from it.
OF_CHECKPOINT = ("checkpoint", "recovery")


def _verdict(asked: Question) -> Any:
    """The verdict. Raises Untrusted without one."""
    if (found := asked.evidence.training(asked.row.parts[1])) is None:
        raise Untrusted("there is no complete log of the training run")
    return found


@kind("training.proof", "a training run passes every check of stacks/training", required=False)
def _proof(asked: Question) -> Finding:
    found = _verdict(asked)
    if not found.passed:
        return Finding(found.verdict, listed(found.reasons, 2))
    busbw = f", all-reduce of gradients {found.busbw_gbps:.4g} GB/s" if found.busbw_gbps else ""
    return Finding("pass", f"{found.step_seconds:.3g} s per step on {counted(found.nodes, 'node')}{busbw}")


@kind("training.nodes", "nodes that took part", "nodes", workers_of, ACCEPTED, required=False)
def _nodes(asked: Question) -> Finding:
    nodes = {*_verdict(asked).expectation["nodes"]}
    out = [name for name in asked.pool.workers if name not in nodes]
    return Finding("pass", f"{counted(len(nodes), 'node')}{but(out)}", len(nodes))


@kind("training.checkpoint", "all nodes resume from the checkpoint that one of them wrote", required=False)
def _checkpoint(asked: Question) -> Finding:
    checks = {each.name: each for each in _verdict(asked).checks if each.name in OF_CHECKPOINT}
    if bad := [each for each in checks.values() if each.status != "pass"]:
        failed = [each for each in bad if each.status == "fail"] or bad
        return Finding("fail" if failed[0].status == "fail" else "unknown", failed[0].reason)
    if len(checks) < len(OF_CHECKPOINT):
        return Finding("unknown", "the run has no check of a checkpoint")
    return Finding("pass", listed([each.reason for each in checks.values()]))
