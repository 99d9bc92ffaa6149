"""A training run, where the command names its proof: the capability that ran it judges it again."""

from __future__ import annotations

import pkgutil
import shutil
from pathlib import Path
from typing import Any

from busbar.capability import capabilities
from busbar.exits import NoVerdict
from busbar.judge.archive import SOURCE, Archive
from busbar.text import counted
from stacks.accept.package.evidence import (
    LOG_FILES,
    SKEW_SECONDS,
    Evidence,
    Untrusted,
    has_log,
    judging,
    read_json,
    time_of,
)
from stacks.accept.package.kinds import Finding, Question, counting, kind, sentences
from stacks.accept.package.running import Planned, Running

# The checks of stacks/training on a checkpoint: it was written, and all ranks have resumed from it.
OF_CHECKPOINT = ("checkpoint", "recovery")


def _verdict(asked: Question) -> Any:
    """The verdict on the training run of a pool, judged again by its capability. Raises Untrusted."""
    evidence, where = asked.evidence, f"training/{asked.name}"
    stage, archive = evidence.stage("training"), Archive(evidence.folder / where)
    if stage is None or not has_log(archive):
        raise Untrusted("there is no complete log of the training run")
    with judging(where):
        kept = read_json(archive.folder / SOURCE)
        if not {*kept["expectation"]["nodes"]} <= {*asked.pool.workers}:
            raise Untrusted(f"{where} ran on other nodes than workers of pool {asked.name}")
        # An update of another stack runs it, between the begin of this run and the end of its stage.
        begin, at = time_of(evidence.begun.began) - SKEW_SECONDS, time_of(str(kept["measured_at"]))
        if not begin <= at <= stage.limits[1]:
            raise Untrusted(f"{where} began at {str(kept['measured_at'])[:80]}, not during this run")
        [judge] = [each.judge for each in capabilities() if each.name == "training" and each.judge]
        return pkgutil.resolve_name(judge)(archive.folder)


@kind("training.proof", "a training run passes every check of stacks/training", required=False)
def _proof(asked: Question) -> Finding:
    found = _verdict(asked)
    if not found.passed:
        return Finding(found.verdict, sentences(found.reasons, 2))
    busbw = f", all-reduce of gradients {found.busbw_gbps:.4g} GB/s" if found.busbw_gbps else ""
    return Finding("pass", f"{found.step_seconds:.3g} s per step on {counted(found.nodes, 'node')}{busbw}")


@counting("training.nodes", "nodes that took part", required=False)
def _nodes(asked: Question) -> Finding:
    return asked.took_part({*_verdict(asked).expectation["nodes"]})


@kind("training.checkpoint", "all nodes resume from the checkpoint that one of them wrote", required=False)
def _checkpoint(asked: Question) -> Finding:
    checks = {each.name: each for each in _verdict(asked).checks if each.name in OF_CHECKPOINT}
    if bad := [each for each in checks.values() if each.status != "pass"]:
        failed = [each for each in bad if each.status == "fail"] or bad
        return Finding("fail" if failed[0].status == "fail" else "unknown", failed[0].reason)
    if len(checks) < len(OF_CHECKPOINT):
        return Finding("unknown", "the run has no check of a checkpoint")
    return Finding("pass", sentences([each.reason for each in checks.values()]))


AGAIN = "raise proof.run of that stack, run `busbar up` for it, then this command again"


def training(on: Running) -> dict[str, str]:
    """Keep the proof with its log. Raises NoVerdict where it is none of this run."""
    begun = Evidence(on.folder).begun
    given = begun.options.get("training")
    if not given:
        return dict.fromkeys(on.site.pools, "no folder is given (--training FOLDER)")
    folder = Path(given)
    try:
        kept = read_json(folder / SOURCE)
        nodes, at = {*kept["expectation"]["nodes"]}, str(kept["measured_at"])
        is_earlier = time_of(at) < time_of(begun.began)
    except (Untrusted, KeyError, TypeError, ValueError) as error:
        raise NoVerdict(f"{folder} has no proof of a training run ({error}). Fix: {AGAIN}") from None
    if is_earlier:
        raise NoVerdict(f"the proof in {folder} is of {at}, before this run. Fix: {AGAIN}")
    pools = [name for name, pool in on.site.pools.items() if nodes and nodes <= {*pool.workers}]
    if not pools:
        raise NoVerdict(f"the proof in {folder} ran on nodes of no pool: {', '.join(sorted(nodes))}")
    to = on.at("training") / pools[0]
    to.mkdir(parents=True, exist_ok=True)
    for name in LOG_FILES:
        shutil.copy(folder / name, to / name)
    return {name: f"the proof is of pool {pools[0]}" for name in on.site.pools if name != pools[0]}


STAGE = Planned("training", training, False, lambda nodes: 0)
