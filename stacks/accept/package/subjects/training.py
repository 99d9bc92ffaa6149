"""A training run, where the command names its proof: the capability that ran it judges it again."""

from __future__ import annotations

import pkgutil
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

from busbar.capability import capabilities
from busbar.exits import NoVerdict
from busbar.judge.archive import SOURCE, Archive
from busbar.text import counted
from stacks.accept.package import evidence as kept
from stacks.accept.package.evidence import LOG_FILES, Evidence, Untrusted, read_json
from stacks.accept.package.kinds import Finding, Question, counting, kind, sentences
from stacks.accept.package.running import Planned, Running

# The checks of stacks/training on a checkpoint: it was written, and all ranks have resumed from it.
OF_CHECKPOINT = ("checkpoint", "recovery")
AGAIN = "raise proof.run of that stack, run `busbar up` for it, then this command again"


@lru_cache(maxsize=4)
def _verdict(evidence: Evidence, pool: str) -> Any:
    """The verdict on the training run of a pool, judged again by its capability. Raises Untrusted."""
    where, workers = f"training/{pool}", evidence.begun.site.pools[pool].workers
    stage, archive = evidence.stage("training"), Archive(evidence.folder / where)
    if stage is None or not kept.has_log(archive):
        raise Untrusted("there is no complete log of the training run")
    with kept.judging(where):
        source = read_json(archive.folder / SOURCE)
        if not {*source["expectation"]["nodes"]} <= {*workers}:
            raise Untrusted(f"{where} ran on other nodes than workers of pool {pool}")
        # An update of another stack runs it, between the begin of this run and the end of its stage.
        begin, at = kept.time_of(evidence.begun.began) - kept.SKEW_SECONDS, str(source["measured_at"])
        if not begin <= kept.time_of(at) <= stage.limits[1]:
            raise Untrusted(f"{where} began at {at[:80]}, not during this run")
        [judge] = [each.judge for each in capabilities() if each.name == "training" and each.judge]
        return pkgutil.resolve_name(judge)(archive.folder)


@kind("training.proof", "a training run passes every check of stacks/training", required=False)
def _proof(asked: Question) -> Finding:
    found = _verdict(asked.evidence, asked.name)
    if not found.passed:
        return Finding(found.verdict, sentences(found.reasons, 2))
    busbw = f", all-reduce of gradients {found.busbw_gbps:.4g} GB/s" if found.busbw_gbps else ""
    return Finding("pass", f"{found.step_seconds:.3g} s per step on {counted(found.nodes, 'node')}{busbw}")


@counting("training.nodes", "nodes that took part", required=False)
def _nodes(asked: Question) -> Finding:
    return asked.took_part({*_verdict(asked.evidence, asked.name).expectation["nodes"]})


@kind("training.checkpoint", "all nodes resume from the checkpoint that one of them wrote", required=False)
def _checkpoint(asked: Question) -> Finding:
    checks = [each for each in _verdict(asked.evidence, asked.name).checks if each.name in OF_CHECKPOINT]
    bad = sorted((each for each in checks if each.status != "pass"), key=lambda each: each.status != "fail")
    if bad:
        return Finding("fail" if bad[0].status == "fail" else "unknown", bad[0].reason)
    if len(checks) < len(OF_CHECKPOINT):
        return Finding("unknown", "the run has no check of a checkpoint")
    return Finding("pass", sentences([each.reason for each in checks]))


def training(on: Running) -> dict[str, str]:
    """Keep the proof with its log. Raises NoVerdict where it is none of this run."""
    given = on.begun.options.get("training")
    if not given:
        return dict.fromkeys(on.pools, "no folder is given (--training FOLDER)")
    folder = Path(given)
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
    for name in LOG_FILES:
        shutil.copy(folder / name, to / name)
    return {name: f"the proof is of pool {pools[0]}" for name in on.pools if name != pools[0]}


STAGE = Planned("training", training, False, lambda nodes: 0)
