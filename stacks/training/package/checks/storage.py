"""The check of storage that all workers share."""

from __future__ import annotations

from stacks.training.package.checks.context import Context
from stacks.training.package.checks.result import Check, failed, passed, unknown

_SHOWN = 4


def storage(context: Context) -> Check | None:
    """Check that every worker read another one's file fast enough. None if no storage is shared."""
    want = context.expectation
    if want.storage_bytes is None:
        return None
    first = context.log.attempts[0] if context.log.attempts else None
    found = first.storage if first else None
    if found is None:
        return unknown("storage.not_probed", "the storage was not probed: whether it is shared is not known")
    if (found.hosts, found.bytes) != (len(want.nodes), want.storage_bytes):
        probed = f"{found.bytes} bytes on each of {found.hosts} workers were probed"
        reason = f"{probed}, expected {want.storage_bytes} on {len(want.nodes)}"
        return unknown("storage.not_probed", reason)
    if found.problems:
        listed = "; ".join(f"{node}: {why}" for node, why in list(found.problems.items())[:_SHOWN])
        return failed("storage.not_shared", f"the workers do not share the storage: {listed}")
    if len(want.nodes) == 1:
        return unknown("storage.not_probed", "one worker read its own file: nothing is known of others")
    for verb, speed, least in (
        ("wrote", found.write_mib_s, want.min_write_mib_s),
        ("read", found.read_mib_s, want.min_read_mib_s),
    ):
        if speed < least:
            reason = f"the slowest worker {verb} {speed:.0f} MiB/s, expected at least {least:g}"
            return failed("storage.too_slow", reason)
    return passed(
        "storage.shared",
        f"each of {found.hosts} workers read what another one wrote; the slowest wrote "
        f"{found.write_mib_s:.0f} MiB/s and read {found.read_mib_s:.0f} MiB/s while all did",
    )
