"""Shared storage, where the command names a folder: fio on one node, on half of them, and on all at once."""

from __future__ import annotations

from stacks.accept.package.evidence import PRINTED, Evidence, Printed, write_json
from stacks.accept.package.rows.storage import mount_faults, widths_of
from stacks.accept.package.site import Pool
from stacks.accept.package.stages.measuring import measure_on
from stacks.accept.package.stages.running import Planned, Running

MOUNT_SECONDS, FIO_SECONDS = 60, 240


def storage(on: Running) -> dict[str, str]:
    """Compare what is mounted on all nodes of a pool, and measure where it is the same."""
    folder, found, notes = Evidence(on.folder).begun.options.get("storage"), Printed(run=on.run, hosts={}), {}
    for name, pool in on.site.pools.items():
        if not folder or not pool.workers:
            notes[name] = "every worker is in quarantine" if folder else "no folder is given (--storage PATH)"
            continue
        values = {"FOLDER": folder, "RUN": on.run}
        first = pool.workers[:1]
        measure_on(on, first, "clear", MOUNT_SECONDS, **values)
        try:
            measure_on(on, first, "mount", MOUNT_SECONDS, LEAVE="true", **values)
            _measure(on, pool, found, values)
        finally:
            for why in measure_on(on, first, "clear", MOUNT_SECONDS, **values).failed.values():
                on.say(f"warning: {why}. Fix: remove {folder}/.busbar-{on.run}")
    write_json(on.at("storage") / PRINTED, found.model_dump(mode="json"))
    return notes


def _measure(on: Running, pool: Pool, found: Printed, values: dict[str, str]) -> None:
    mounted = measure_on(on, pool.workers, "mount", MOUNT_SECONDS, **values)
    found.hosts.update(mounted.hosts)
    found.failed.update(mounted.failed)
    if mounted.failed or mount_faults(mounted.hosts, on.run):
        return
    for width in widths_of(pool):
        on.say(f"fio on {width} of {len(pool.workers)} nodes")
        done = measure_on(on, pool.workers[:width], "fio", FIO_SECONDS, **values)
        for name in pool.workers[:width]:
            found.hosts[name][f"fio-{width}"] = done.hosts.get(name) or {"error": done.failed.get(name)}


STAGE = Planned("storage", storage, False, lambda nodes: 180, logs_in=True)
