"""The rows of the collectives over all healthy nodes: proof of the first runs, and the repeats."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from busbar.text import counted, listed
from busbar.versions import release
from stacks.accept.package.evidence import Judged, Untrusted
from stacks.accept.package.rows.kinds import ACCEPTED, Finding, Question, but, kind, workers_of
from stacks.accept.package.site import Pool

# Runs of each collective, the first one included. Median and spread count, not the best.
RUNS: Mapping[str, int] = {"all_reduce": 10, "all_gather": 3, "reduce_scatter": 3, "alltoall": 3}
# The spread of ten runs of a healthy rack was 0.05 % (NVIDIA/aicr#2573); a wobble of 5 % is a fault.
SPREAD_PERCENT = 5.0
# NCCL_RUN_DIAGNOSTICS exists from this release on.
DIAGNOSTICS = (2, 31)
# Gates that a log with NCCL_DEBUG=WARN can pass, and those that judge a single run.
OF_REPEATS = ("job", "source", "collective", "completeness", "correctness")
OF_ONE_RUN = ("busbw", "stability")


def _yardstick(pool: Pool, collective: str) -> dict[str, Any]:
    transport, tolerance = pool.expectation["transport"], pool.expectation["tolerance"]
    return {**pool.expected_gbps, "transport": transport, "tolerance": tolerance}


@kind(
    "collectives.proof", "the first run of each collective passes every gate, transport included",
    source="expected busbw: {origin}", expects=_yardstick,
)  # fmt: skip
def _proof(asked: Question) -> Finding:
    log = asked.log("collectives")
    if missing := [name for name in RUNS if name not in log.busbw]:
        return Finding("unknown", f"no table of {listed(missing)}")
    good = f"all gates passed; transport {log.verdict.transport}, all_reduce {log.verdict.busbw_gbps} GB/s"
    return Finding(log.verdict.verdict, good if log.verdict.passed else listed(log.verdict.reasons, 2))


@kind("collectives.nodes", "nodes that took part", "nodes", workers_of, ACCEPTED)
def _took_part(asked: Question) -> Finding:
    log = asked.log("collectives")
    nodes = {*log.record.nodes}
    if log.verdict.nodes != len(nodes):
        return Finding("unknown", f"the log is of {log.verdict.nodes} nodes, its job had {len(nodes)}")
    out = [name for name in asked.pool.workers if name not in nodes]
    return Finding("pass", f"{counted(len(nodes), 'node')}{but(out)}", len(nodes))


@kind("collectives.diagnostics", "NCCL's own diagnostics (NCCL 2.31 and newer)", required=False)
def _diagnostics(asked: Question) -> Finding:
    found = asked.log("collectives").verdict
    if bad := [each.evidence for each in found.diagnoses if each.name == "nccl-diagnostics"]:
        return Finding("fail", listed(bad))
    named = {each.name: each.evidence.partition("NCCL DIAG ")[2] for each in found.diagnoses}
    without = named.get("nccl-diagnostics-not-measured", "")
    if "nccl-diagnostics-passed" in named:
        return Finding("pass", f"NCCL's diagnostics passed{f', without {without}' if without else ''}")
    if without:
        return Finding("not run", without)
    known = release(found.nccl_version or "")
    if known is None or known.release[:2] >= DIAGNOSTICS:
        return Finding("unknown", f"NCCL {found.nccl_version} printed no `NCCL DIAG`")
    return Finding("not run", f"NCCL {found.nccl_version} has no diagnostics, NCCL 2.31 and newer have")


@kind("repeats.log", "the repeated runs are whole, and their data is correct")
def _repeats(asked: Question) -> Finding:
    log = asked.log("repeats")
    if bad := not_whole(log):
        return bad
    if few := [name for name, runs in RUNS.items() if len(log.busbw.get(name, [])) != runs - 1]:
        return Finding("unknown", f"other than the planned number of runs: {', '.join(few)}")
    return Finding("pass", f"{sum(map(len, log.busbw.values()))} runs, whole and correct")


def not_whole(log: Judged) -> Finding | None:
    """Why a log with warnings only is not whole and correct; None if it is."""
    checks = {each.name: each for each in log.verdict.checks if each.name not in OF_ONE_RUN}
    if failed := [f"{each.name}: {each.reason}" for each in checks.values() if each.status == "fail"]:
        return Finding("fail", listed(failed, 2))
    if open_ := [name for name in OF_REPEATS if name not in checks or checks[name].status != "pass"]:
        return Finding("unknown", f"gates without their evidence: {', '.join(open_)}")
    return None


def _values(asked: Question) -> list[float]:
    """busbw of all runs of the row's collective, in GB/s. Raises Untrusted where there are not as many."""
    first, more, (_, _, name, _) = asked.log("collectives"), asked.log("repeats"), asked.row.parts
    if first.record.nodes != more.record.nodes:
        raise Untrusted("the repeats ran on other nodes than the first run")
    found = [*first.busbw.get(name, []), *more.busbw.get(name, [])]
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
