"""The collectives over all healthy nodes: the first run of each with full proof, then the repeats."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from busbar.text import counted, listed
from stacks.accept.package.evidence import Judged, Untrusted
from stacks.accept.package.kinds import Finding, Question, counting, kind, sentences
from stacks.accept.package.running import START_SECONDS, Planned, Running
from stacks.accept.package.site import COLLECTIVES, Pool, validation_of

# Runs of each collective, the first one included. Median and spread count, not the best.
RUNS: Mapping[str, int] = {"all_reduce": 10, "all_gather": 3, "reduce_scatter": 3, "alltoall": 3}
# The spread of ten runs of a healthy rack was 0.05 % (NVIDIA/aicr#2573); a wobble of 5 % is a fault.
SPREAD_PERCENT = 5.0
# Gates that a log with NCCL_DEBUG=WARN can pass, and those that judge a single run.
OF_REPEATS = ("job", "source", "collective", "completeness", "correctness")
OF_ONE_RUN = ("busbw", "stability")


def _yardstick(pool: Pool, collective: str) -> dict[str, Any]:
    own = {key: pool.expectation[key] for key in ("transport", "tolerance")}
    return {**pool.expected_gbps, **own, "accept_warnings": "; ".join(pool.expectation["accept_warnings"])}


@kind(
    "collectives.proof", "the first run of each collective passes every gate, transport included",
    source="expected busbw: {origin}", expects=_yardstick,
)  # fmt: skip
def _proof(asked: Question) -> Finding:
    log = asked.log("collectives")
    if missing := [name for name in RUNS if name not in log.runs]:
        return Finding("unknown", f"no table of {listed(missing)}")
    good = f"all gates passed; transport {log.verdict.transport}, all_reduce {log.verdict.busbw_gbps} GB/s"
    return Finding(log.verdict.verdict, good if log.verdict.passed else sentences(log.verdict.reasons, 2))


@counting("collectives.nodes", "nodes that took part")
def _took_part(asked: Question) -> Finding:
    log = asked.log("collectives")
    nodes = {*log.record.nodes}
    if log.verdict.nodes != len(nodes):
        return Finding("unknown", f"the log is of {log.verdict.nodes} nodes, its job had {len(nodes)}")
    return asked.took_part(nodes)


@kind("repeats.log", "the repeated runs are whole, and their data is correct")
def _repeats(asked: Question) -> Finding:
    log = asked.log("repeats")
    if bad := not_whole(log):
        return bad
    if few := [name for name, runs in RUNS.items() if len(log.busbw(name)) != runs - 1]:
        return Finding("unknown", f"other than the planned number of runs: {', '.join(few)}")
    return Finding("pass", f"{sum(map(len, log.runs.values()))} runs, whole and correct")


def not_whole(log: Judged) -> Finding | None:
    """Why a log with warnings only is not whole and correct; None if it is."""
    checks = {each.name: each for each in log.verdict.checks if each.name not in OF_ONE_RUN}
    if failed := [f"{each.name}: {each.reason}" for each in checks.values() if each.status == "fail"]:
        return Finding("fail", sentences(failed, 2))
    if open_ := [name for name in OF_REPEATS if name not in checks or checks[name].status != "pass"]:
        return Finding("unknown", f"gates without their evidence: {', '.join(open_)}")
    return None


def _values(asked: Question) -> list[float]:
    """busbw of all runs of the row's collective, in GB/s. Raises Untrusted where there are not as many."""
    first, more, (_, _, name, _) = asked.log("collectives"), asked.log("repeats"), asked.row.parts
    if first.record.nodes != more.record.nodes:
        raise Untrusted("the repeats ran on other nodes than the first run")
    found = [*first.busbw(name), *more.busbw(name)]
    if len(found) != RUNS[name] or median(found) <= 0:
        raise Untrusted(f"{len(found)} runs with a bandwidth, expected {RUNS[name]}")
    return found


@kind(
    "repeats.busbw", "median busbw of all runs", "% of the expected busbw",
    lambda pool: round(100 * (1 - pool.expectation["tolerance"]), 3),
    "validation.tolerance; expected busbw: {origin}", 100, per_collective=True, uses=("collectives",),
    expects=lambda pool, name: {"gbps": pool.expected_gbps[name], "transport": pool.expectation["transport"]},
)  # fmt: skip
def _busbw(asked: Question) -> Finding:
    found = _values(asked)
    known = asked.log("collectives").verdict.collectives.get(asked.row.parts[2])
    expected, middle = asked.row.expected.get("gbps"), median(found)
    text = f"median of {len(found)} runs {middle:g} GB/s"
    if known is None or not isinstance(expected, float):
        return Finding("unknown", f"{text}; no expected value exists")
    if known.ceiling_gbps and max(found) > known.ceiling_gbps:
        above = f"{max(found):g} GB/s is above the ceiling of {known.ceiling_gbps:g}"
        return Finding("fail", f"{above}: not credible")
    share = 100 * middle / expected
    return Finding("pass", f"{text}, {share:.1f} % of {expected:g}", round(share, 2))


@kind(
    "repeats.spread", "highest minus lowest busbw of all runs", "% of the median",
    lambda pool: SPREAD_PERCENT, "a healthy rack: 0.05 % (NVIDIA/aicr#2573)", 100, least=False,
    per_collective=True, uses=("collectives",),
)  # fmt: skip
def _spread(asked: Question) -> Finding:
    found = _values(asked)
    value = round(100 * (max(found) - min(found)) / median(found), 2)
    return Finding("pass", f"{min(found):g} to {max(found):g} GB/s in {len(found)} runs, {value:g} %", value)


# Seconds of one collective with the start of its ranks, at 3,520.
RUN_SECONDS = 45


def fabric(stage: str, runs: Sequence[str], env: Mapping[str, str], on: Running) -> dict[str, str]:
    """Measure over all healthy nodes, in one job per pool, and keep its log. Raises NoVerdict."""
    jobs = {pool: on.begun.job(stage, pool) for pool in on.pools if on.good(pool)}
    on.clean_up(*jobs.values())
    for pool, job in jobs.items():
        on.say(f"pool {pool}: {counted(len(runs), 'run')} of nccl-tests")
        validation = validation_of(on.cluster.validation_of(pool), runs, NCCL_RUN_DIAGNOSTICS="1", **env)
        # Events of a former job, as that it made room for others, stay for an hour.
        on.measure(on.plan(pool, f"{job}-{os.urandom(2).hex()}", validation), on.at(stage) / pool)
    return {pool: "every worker fails alone" for pool in on.pools if pool not in jobs}


def _measuring(stage: str, runs: Sequence[str], **env: str) -> Planned:
    seconds = START_SECONDS + RUN_SECONDS * len(runs)
    return Planned(stage, partial(fabric, stage, runs, env), True, lambda nodes: seconds)


# The first run of each has full proof; the others have warnings only, or the logs would have GB.
FIRST = _measuring("collectives", COLLECTIVES)
REPEATS = _measuring(
    "repeats", [name for name in COLLECTIVES for _ in range(RUNS[name] - 1)], NCCL_DEBUG="WARN"
)
