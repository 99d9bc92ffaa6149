"""Shared storage, where the command names a folder: fio on one node, on half of them, and on all at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from busbar.text import counted, listed
from stacks.accept.package.evidence import PRINTED, Printed, Untrusted, write_json
from stacks.accept.package.kinds import Find, Finding, Question, kind, sentences
from stacks.accept.package.running import Planned, Running
from stacks.accept.package.site import Pool

# fio writes as much per node.
NODE_BYTES = 1 << 30
STATE = "the training state of 8 billion parameters (112 GB) in 60 s"
MOUNT_SECONDS, FIO_SECONDS = 60, 240
Hosts = Mapping[str, dict[str, Any]]


def widths_of(pool: Pool) -> list[int]:
    """The numbers of nodes that fio runs on at once."""
    nodes = len(pool.workers)
    return sorted({1, nodes // 2, nodes} - {0})


def mount_faults(hosts: Hosts, run: str) -> list[str]:
    """Why the folder is not one shared folder on these hosts."""
    mounts = {name: str(each.get("mount") or "") for name, each in hosts.items()}
    most = Counter(mounts.values()).most_common(1)[0][0] if mounts else ""
    faults = [f"{name}: the folder is not there" for name, mount in mounts.items() if not mount]
    faults += [
        f"{name}: {mount}, most nodes have {most}"
        for name, mount in mounts.items()
        if mount not in ("", most)
    ]
    if most.startswith("/ "):
        faults.append(f"nothing is mounted there: it is on the root file system ({most})")
    silent = [name for name in mounts if hosts[name].get("seen") != run and mounts[name] == most]
    faults += [f"{name}: does not see the file of another node" for name in silent]
    told = (each.get("free_bytes") for each in hosts.values())
    free = min((each if isinstance(each, int) else 0 for each in told), default=0)
    wanted = 2 * NODE_BYTES * len(hosts)
    if not faults and free < wanted:
        faults.append(f"{free / 1e9:.0f} GB are free, expected {wanted / 1e9:.0f}")
    return faults


def _hosts(asked: Question) -> Hosts:
    """The output of the workers. Raises Untrusted where one has none."""
    printed, workers = asked.evidence.printed("storage"), asked.pool.workers
    if silent := printed.silent(workers):
        raise Untrusted(sentences(silent))
    return {name: printed.hosts[name] for name in workers}


@kind("storage.mount", "the folder is the same shared file system on all nodes", required=False)
def _mount(asked: Question) -> Finding:
    hosts = _hosts(asked)
    mounts = sorted({str(each.get("mount")) for each in hosts.values()})
    good = f"{listed(mounts)} on {counted(len(hosts), 'node')}"
    return Finding.of(mount_faults(hosts, asked.evidence.begun.run), [], good)


def _figure(name: str, printed: Any, job: str, part: str, key: str) -> float:
    """A figure in the output of fio of a node. Raises Untrusted where it has none."""
    if printed["error"]:
        raise Untrusted(f"{name}: {str(printed['error'])[:300]}")
    [found] = [each for each in json.loads(printed["fio"])["jobs"] if each["jobname"] == job]
    value = float(found[part][key])
    if found["error"] or not 0 < value < 1e15:
        raise Untrusted(f"{name}: fio ended with error {found['error']}")
    return value


def _rate(job: str, part: str, key: str, scale: float) -> Find:
    """A row on the sum of a figure of fio over all nodes at once; the other widths stand beside it."""

    def find(asked: Question) -> Finding:
        hosts, values = _hosts(asked), dict[int, float]()
        if mount_faults(hosts, asked.evidence.begun.run):
            return Finding("not run", "the folder is not the same on all nodes, or has too little space")
        for width in widths_of(asked.pool):
            values[width] = 0.0
            for name in asked.pool.workers[:width]:
                try:
                    values[width] += _figure(name, hosts[name].get(f"fio-{width}") or {}, job, part, key)
                except (ValueError, OverflowError, RecursionError, KeyError, TypeError) as error:
                    what = f"fio on {counted(width, 'node')} has no figure ({type(error).__name__})"
                    raise Untrusted(f"{name}: {what}") from None
        text = ", ".join(f"{value / scale:.4g} on {counted(n, 'node')}" for n, value in values.items())
        return Finding("pass", text, round(values[len(asked.pool.workers)] / scale, 4))

    return find


def _speed(name: str, what: str) -> None:
    row = kind(f"storage.{name}", what, "GB/s", lambda pool: 1.9, STATE, 1e6, required=False)
    row(_rate(name, name, "bw_bytes", 1e9))


_speed("write", "writes of all nodes at once")
_speed("read", "reads of all nodes at once")
kind(
    "storage.iops", "random reads of 4 KiB of all nodes at once", "IOPS", lambda pool: 10_000.0,
    "to be agreed on", 1e12, required=False,
)(_rate("iops", "read", "iops", 1))  # fmt: skip


def storage(on: Running) -> dict[str, str]:
    """Compare what is mounted on all nodes of a pool, and measure where it is the same."""
    folder, found = on.begun.options.get("storage"), Printed(run=on.run, hosts={})
    if not folder:
        return dict.fromkeys(on.pools, "no folder is given (--storage PATH)")
    values = {"FOLDER": folder, "RUN": on.run}
    for pool in on.pools.values():
        first = pool.workers[:1]
        on.on_hosts(first, "clear", MOUNT_SECONDS, **values)
        try:
            on.on_hosts(first, "mount", MOUNT_SECONDS, LEAVE="true", **values)
            _measure(on, pool, found, values)
        finally:
            for why in on.on_hosts(first, "clear", MOUNT_SECONDS, **values).failed.values():
                on.say(f"warning: {why}. Fix: remove {folder}/.busbar-{on.run}")
    write_json(on.at("storage") / PRINTED, found)
    return {}


def _measure(on: Running, pool: Pool, found: Printed, values: dict[str, str]) -> None:
    mounted = on.on_hosts(pool.workers, "mount", MOUNT_SECONDS, **values)
    found.hosts.update(mounted.hosts)
    found.failed.update(mounted.failed)
    if mounted.failed or mount_faults(mounted.hosts, on.run):
        return
    for width in widths_of(pool):
        on.say(f"fio on {width} of {len(pool.workers)} nodes")
        done = on.on_hosts(pool.workers[:width], "fio", FIO_SECONDS, **values)
        for name in pool.workers[:width]:
            found.hosts[name][f"fio-{width}"] = done.hosts.get(name) or {"error": done.failed.get(name)}


STAGE = Planned("storage", storage, False, lambda nodes: 180, logs_in=True)
