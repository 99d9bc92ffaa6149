"""The paths of rails without NCCL: each HCA with the memory of its host and of a GPU, then with a partner."""

from __future__ import annotations

from busbar.fabric.commands.diagnose import measure_paths, pods_on
from busbar.fabric.paths import LOOK_SECONDS, RUN_SECONDS, Found
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
    """Measure the paths of each pool. Raises NoVerdict while pods hold its GPUs or HCAs."""
    found, notes = Paths(run=on.run, pools={}), dict[str, str]()
    for name, pool in on.pools.items():
        workers = [*pool.workers]
        if pool.required.rails:
            held = pods_on(workers, on.api)
            image = on.cluster.validation_of(name).image
            places = on.cluster.hosts.workers
            found.pools[name] = measure_paths(on.spec, workers, places, held, on.say, image=image)
        else:
            notes[name] = "the pool has no rails"
    write_json(on.at("paths") / PATHS, found)
    return notes


# Of eight rails, with two rounds of pairs.
STAGE = Planned("paths", paths, True, lambda nodes: LOOK_SECONDS + 4 * 8 * RUN_SECONDS, logs_in=True)
