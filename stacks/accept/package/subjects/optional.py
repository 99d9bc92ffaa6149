"""Stages that no row requires by default: paths of rails without NCCL, shared storage, and a training run."""

from __future__ import annotations

import json
import pkgutil
import shutil
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from busbar.capability import capabilities
from busbar.exits import NoVerdict
from busbar.fabric.commands.diagnose import measure_paths, pods_on
from busbar.fabric.paths import LOOK_SECONDS, RUN_SECONDS, Found
from busbar.judge.archive import SOURCE, Archive
from busbar.kube.wait import Pending
from busbar.text import counted, listed
from stacks.accept.package import evidence as kept
from stacks.accept.package.evidence import Evidence, OfRun, Printed, Untrusted, judging, read_json, write_json
from stacks.accept.package.kinds import Finding, Question, counting, kind, sentences
from stacks.accept.package.running import Planned, Running
from stacks.accept.package.site import Pool

PATHS_FILE = "paths.json.zst"


class Paths(OfRun):
    """The paths of each pool."""

    pools: dict[str, Found]


@kind(
    "paths.slow", "every rail reaches its floor alone and with a partner (ib_write_bw)", required=False,
    source="azurehpc-health-checks PR 38; the median of the pool", when=lambda pool: pool.required.rails > 0,
)  # fmt: skip
def _slow(asked: Question) -> Finding:
    of_pools = asked.evidence.read(Paths, f"paths/{PATHS_FILE}")
    found = of_pools.pools.get(asked.name, Found()) if of_pools else Found()
    rate = asked.pool.required.rate_gbps
    if any(rail.link_gbps != rate for rails in found.rails.values() for rail in rails.values()):
        raise Untrusted(f"paths/{PATHS_FILE} has a rail of another rate than {rate:g} Gb/s")
    with judging(f"paths/{PATHS_FILE}"):
        rows = found.rows
    if rows:
        texts = [f"{row.path}: {row.measured}, expected {row.expected}; see {row.points_to}" for row in rows]
        return Finding("fail", sentences(texts))
    measured = {path.host for path in found.paths}
    silent = [f"{name}: no result" for name in asked.pool.workers if name not in measured]
    if not_run := found.not_run or silent:
        return Finding("not run", sentences(not_run))
    return Finding("pass", f"{len(found.paths)} paths")


def paths(on: Running) -> dict[str, str]:
    """Measure the paths of each pool, once no pod holds its GPUs or HCAs. Raises NoVerdict."""
    found, notes, places = Paths(run=on.begun.run, pools={}), dict[str, str](), on.cluster.hosts.workers
    for name, pool in on.pools.items():
        if not pool.required.rails:
            notes[name] = "the pool has no rails"
            continue
        nodes, validation = [*pool.workers], on.cluster.validation_of(name)
        if on.idle:
            nodes = [*on.free_nodes(name, nodes=nodes)]

        def ended(nodes: list[str] = nodes) -> Pending | None:
            held = pods_on(nodes, on.api)
            return Pending(f"GPUs or HCAs are in use: {listed(held)}") if held else None

        on.patient(ended, validation)
        found.pools[name] = measure_paths(on.spec, nodes, places, (), on.say, image=validation.image)
    write_json(on.at("paths") / PATHS_FILE, found)
    return notes


# Of eight rails, with two rounds of pairs.
PATHS = Planned("paths", paths, True, lambda nodes: LOOK_SECONDS + 4 * 8 * RUN_SECONDS, logs_in=True)

# fio writes as much per node.
NODE_BYTES = 1 << 30
STATE = "the training state of 8 billion parameters (112 GB) in 60 s"
MOUNT_SECONDS, FIO_SECONDS = 60, 240
Hosts = Mapping[str, dict[str, Any]]


def widths_of(pool: Pool) -> list[int]:
    """The numbers of nodes that fio runs on at once: one, half of them, and all."""
    nodes = len(pool.workers)
    return sorted({1, nodes // 2, nodes} - {0})


def mount_faults(hosts: Hosts, run: str) -> list[str]:
    """Why the folder is not one shared folder on these hosts."""
    mounts, faults = {name: str(each.get("mount") or "") for name, each in hosts.items()}, list[str]()
    most = Counter(mounts.values()).most_common(1)[0][0] if mounts else ""
    for name, mount in mounts.items():
        if not mount:
            faults.append(f"{name}: the folder is not there")
        elif mount != most:
            faults.append(f"{name}: {mount}, most nodes have {most}")
        elif hosts[name].get("seen") != run:
            faults.append(f"{name}: does not see the file of another node")
    if most.startswith("/ "):
        faults.append(f"nothing is mounted there: it is on the root file system ({most})")
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


def _figure(name: str, printed: dict[str, Any], job: str, part: str, key: str) -> float:
    """A figure in the output of fio of a node. Raises Untrusted where fio says why it has none."""
    if printed["error"]:
        raise Untrusted(f"{name}: {str(printed['error'])[:300]}")
    [found] = [each for each in json.loads(printed["fio"])["jobs"] if each["jobname"] == job]
    value = float(found[part][key])
    if found["error"] or not 0 < value < 1e15:
        raise Untrusted(f"{name}: fio ended with error {found['error']}")
    return value


def _rate(job: str, what: str, unit: str, least: float, source: str, part: str, key: str, by: float) -> None:
    """A row on the sum of a figure of fio over all nodes at once; the other widths stand beside it."""

    @kind(f"storage.{job}", what, unit, lambda pool: least, source, 1e12, required=False)
    def _find(asked: Question) -> Finding:
        hosts, values = _hosts(asked), dict[int, float]()
        if mount_faults(hosts, asked.evidence.begun.run):
            return Finding("not run", "the folder is not the same on all nodes, or has too little space")
        for width in widths_of(asked.pool):
            values[width] = 0.0
            for name in asked.pool.workers[:width]:
                with judging(f"{name}: the output of fio on {counted(width, 'node')}"):
                    values[width] += _figure(name, hosts[name][f"fio-{width}"], job, part, key)
        text = ", ".join(f"{value / by:.4g} on {counted(n, 'node')}" for n, value in values.items())
        return Finding("pass", text, round(values[len(asked.pool.workers)] / by, 4))


_rate("write", "writes of all nodes at once", "GB/s", 1.9, STATE, "write", "bw_bytes", 1e9)
_rate("read", "reads of all nodes at once", "GB/s", 1.9, STATE, "read", "bw_bytes", 1e9)
_rate("iops", "random reads of 4 KiB of all nodes at once", "IOPS", 1e4, "to be agreed on", "read", "iops", 1)


def storage(on: Running) -> dict[str, str]:
    """Compare what is mounted on all nodes of a pool, and measure where it is the same."""
    folder, found = on.begun.options["storage"], Printed(run=on.begun.run, hosts={})
    values = {"FOLDER": folder, "RUN": on.begun.run}
    for pool in on.pools.values():
        first = pool.workers[:1]
        on.on_hosts(first, "clear", MOUNT_SECONDS, **values)
        try:
            on.on_hosts(first, "mounted", MOUNT_SECONDS, LEAVE="true", **values)
            _measure(on, pool, found, values)
        finally:
            for why in on.on_hosts(first, "clear", MOUNT_SECONDS, **values).failed.values():
                on.say(f"warning: {why}. Fix: remove {folder}/.busbar-{on.begun.run}")
    write_json(on.at("storage") / kept.PRINTED, found)
    return {}


def _measure(on: Running, pool: Pool, found: Printed, values: dict[str, str]) -> None:
    mounted = on.on_hosts(pool.workers, "mounted", MOUNT_SECONDS, **values)
    found.add(mounted)
    if mounted.failed or mount_faults(mounted.hosts, on.begun.run):
        return
    for width in widths_of(pool):
        on.say(f"fio on {width} of {len(pool.workers)} nodes")
        done = on.on_hosts(pool.workers[:width], "storage", FIO_SECONDS, **values)
        for name in pool.workers[:width]:
            found.hosts[name][f"fio-{width}"] = done.hosts.get(name) or {"error": done.failed.get(name)}


STORAGE = Planned("storage", storage, False, lambda nodes: 180, logs_in=True, option="storage")

# The checks of stacks/training on a checkpoint: it was written, and all ranks have resumed from it.
OF_CHECKPOINT = ("checkpoint", "recovery")
AGAIN = "raise proof.run of that stack and update it, then run this command again"


@lru_cache(maxsize=4)
def _verdict(evidence: Evidence, pool: str) -> Any:
    """The verdict on the training run of a pool, judged again by its capability. Raises Untrusted."""
    where, facts = f"training/{pool}", evidence.begun.site.pools[pool]
    stage, archive = evidence.stage("training"), Archive(evidence.folder / where)
    with judging(where):
        source, known = read_json(archive.folder / SOURCE), evidence.changes.known
        nodes, machines = source["expectation"]["nodes"], source["expectation"].get("machines") or {}
        if not {*nodes} <= {*facts.workers}:
            raise Untrusted(f"{where} ran on other nodes than workers of pool {pool}")
        # Workers of another cluster may have the same names. A stack knows a machine by 8 characters.
        if other := [name for name in nodes if machines.get(name) != known[name].machine[:8]]:
            raise Untrusted(f"{where} ran on other machines than the workers {listed(other)}")
        said, wanted = source["expectation"]["fabric"]["transport"], facts.expectation["transport"]
        if said != wanted:
            raise kept.Contradiction(f"{where} says transport {said!r}, the run began with {wanted!r}"[:400])
        # An update of another stack runs it, between the begin of this run and the end of its stage.
        begin, at = kept.time_of(evidence.begun.began) - kept.SKEW_SECONDS, str(source["measured_at"])
        if not stage or not begin <= kept.time_of(at) <= stage.limits[1]:
            raise Untrusted(f"{where} began at {at[:80]}, not during this run")
        [judge] = [each.judge for each in capabilities() if each.name == "training" and each.judge]
        if verdict := pkgutil.resolve_name(judge)(archive.folder):
            return verdict
    raise Untrusted("there is no complete log of the training run")


@kind("training.proof", "a training run passes every check of stacks/training", required=False)
def _proof(asked: Question) -> Finding:
    found = _verdict(asked.evidence, asked.name)
    if not found.passed:
        return Finding(found.verdict, sentences(found.reasons, 2))
    least = f"{100 * found.expectation['min_busbw_fraction']:g} % of {found.measured_busbw_gbps:.4g}"
    busbw = f"all-reduce of gradients {found.busbw_gbps:.4g} GB/s, expected at least {least}"
    return Finding("pass", f"{found.step_seconds:.3g} s per step on {counted(found.nodes, 'node')}, {busbw}")


@counting("training.nodes", "nodes that took part", required=False)
def _nodes(asked: Question) -> Finding:
    return asked.took_part({*_verdict(asked.evidence, asked.name).expectation["nodes"]})


@kind("training.checkpoint", "all nodes resume from the checkpoint that one of them wrote", required=False)
def _checkpoint(asked: Question) -> Finding:
    checks = [each for each in _verdict(asked.evidence, asked.name).checks if each.name in OF_CHECKPOINT]
    bad = [each.reason for each in checks if each.status == "fail"]
    open_ = [each.reason for each in checks if each.status not in ("pass", "fail")]
    if len(checks) < len(OF_CHECKPOINT):
        open_.append("the run has no check of a checkpoint")
    return Finding.of(bad, open_, sentences([each.reason for each in checks]))


def training(on: Running) -> dict[str, str]:
    """Keep the proof with its log. Raises NoVerdict where it is none of this run."""
    folder = Path(on.begun.options["training"])
    try:
        source = read_json(folder / SOURCE)
        nodes, at = {*source["expectation"]["nodes"]}, str(source["measured_at"])
        is_earlier = kept.time_of(at) < kept.time_of(on.begun.began)
    except (Untrusted, KeyError, TypeError, ValueError) as error:
        raise NoVerdict(f"{folder} has no proof of a training run ({error}). Fix: {AGAIN}") from None
    if is_earlier:
        raise NoVerdict(f"the proof in {folder} is of {at}, before this run. Fix: {AGAIN}")
    pools = [name for name, pool in on.pools.items() if nodes and nodes <= {*pool.workers}]
    if not pools:
        raise NoVerdict(f"the proof in {folder} ran on nodes of no pool: {', '.join(sorted(nodes))}")
    to = on.at("training") / pools[0]
    to.mkdir(parents=True, exist_ok=True)
    for name in kept.LOG_FILES:
        shutil.copy(folder / name, to / name)
    return {name: f"the proof is of pool {pools[0]}" for name in on.pools if name != pools[0]}


TRAINING = Planned("training", training, False, lambda nodes: 0, option="training")
