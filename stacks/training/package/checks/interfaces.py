"""The check of secondary networks for data over TCP; NCCL's own messages prove RDMA (checks.fabric)."""

from __future__ import annotations

from stacks.training.package.checks.context import Context
from stacks.training.package.checks.result import Check, failed, passed, unknown

# Largest part of the bytes that may use other interfaces: rendezvous and heartbeats stay on eth0.
MAX_OTHER_PART = 0.1


def interfaces(context: Context) -> Check | None:
    """Check that the all-reduces used the networks. None if no network carries TCP, or on one host."""
    want = context.expectation
    if not want.interfaces or len(want.nodes) == 1:
        return None
    found = context.last.interfaces if context.last else None
    if found is None or context.timing is None:
        return unknown("interfaces.not_counted", "what the interfaces sent was not counted")
    if found.hosts != len(want.nodes):
        reason = f"the interfaces of {found.hosts} workers were counted, expected {len(want.nodes)}"
        return unknown("interfaces.not_counted", reason)
    networks = sum(found.sent[name][0] for name in want.interfaces if name in found.sent)
    others = {name: most for name, (_, most) in found.sent.items() if name not in want.interfaces}
    # With any algorithm, a participating host sends at least its own gradients once.
    least = context.timing.bytes * len(context.timing.allreduce_s)
    listed = ", ".join(want.interfaces)
    if networks < least:
        instead = max(others, key=lambda name: others[name], default=None)
        over = f"; {instead} sent {others[instead]}" if instead else ""
        reason = (
            f"{listed} sent {networks} bytes on the worker with the least, expected at least {least}{over}"
        )
        return failed("interfaces.not_used", reason)
    for name, most in others.items():
        if most > MAX_OTHER_PART * networks:
            reason = (
                f"{name} sent {most} bytes besides {networks} over {listed}: a part of the data went there"
            )
            return failed("interfaces.not_used", reason)
    beside = max(others.values(), default=0)
    return passed("interfaces.used", f"{listed} sent at least {networks} bytes, others at most {beside}")
