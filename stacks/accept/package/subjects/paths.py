"""The paths of rails without NCCL: each HCA with the memory of its host and of a GPU, then with a partner."""

from __future__ import annotations

from busbar.fabric.commands.diagnose import measure_paths, pods_on
from busbar.fabric.paths import LOOK_SECONDS, RUN_SECONDS, Found
from busbar.kube.wait import Pending
from busbar.text import listed
from stacks.accept.package.evidence import OfRun, Untrusted, judging, write_json
from stacks.accept.package.kinds import Finding, Question, kind, sentences
from stacks.accept.package.running import Planned, Running

PATHS = "paths.json.zst"


class Paths(OfRun):
    """The paths of each pool."""

    pools: dict[str, Found]


@kind(
    "paths.slow", "every rail reaches its floor alone and with a partner (ib_write_bw)", required=False,
    source="azurehpc-health-checks PR 38; the median of the pool", when=lambda pool: pool.required.rails > 0,
)  # fmt: skip
def _slow(asked: Question) -> Finding:
    kept = asked.evidence.read(Paths, f"paths/{PATHS}")
    found = kept.pools.get(asked.name, Found()) if kept else Found()
    rate = asked.pool.required.rate_gbps
    if any(rail.link_gbps != rate for rails in found.rails.values() for rail in rails.values()):
        raise Untrusted(f"paths/{PATHS} has a rail of another rate than {rate:g} Gb/s")
    with judging(f"paths/{PATHS}"):
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
    found, notes, places = Paths(run=on.run, pools={}), dict[str, str](), on.cluster.hosts.workers
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
    write_json(on.at("paths") / PATHS, found)
    return notes


# Of eight rails, with two rounds of pairs.
STAGE = Planned("paths", paths, True, lambda nodes: LOOK_SECONDS + 4 * 8 * RUN_SECONDS, logs_in=True)
