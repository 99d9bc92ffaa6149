"""A training run, where the command names the folder of its proof: an update of stacks/training runs it."""

from __future__ import annotations

import shutil
from pathlib import Path

from busbar.exits import NoVerdict
from busbar.judge.archive import SOURCE
from stacks.accept.package.evidence import LOG_FILES, Evidence, Untrusted, read_json, time_of
from stacks.accept.package.stages.running import Planned, Running

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
        nodes, at = {*kept["expectation"]["nodes"]}, time_of(str(kept["measured_at"]))
    except (Untrusted, KeyError, TypeError, ValueError) as error:
        raise NoVerdict(f"{folder} has no proof of a training run ({error}). Fix: {AGAIN}") from None
    if at < time_of(begun.began):
        raise NoVerdict(f"the proof in {folder} is of {at:%Y-%m-%d %H:%M} UTC, before this run. Fix: {AGAIN}")
    pools = [name for name, pool in on.site.pools.items() if nodes and nodes <= {*pool.workers}]
    if not pools:
        raise NoVerdict(f"the proof in {folder} ran on nodes of no pool: {', '.join(sorted(nodes))}")
    to = on.at("training") / pools[0]
    to.mkdir(parents=True, exist_ok=True)
    for name in LOG_FILES:
        shutil.copy(folder / name, to / name)
    return {name: f"the proof is of pool {pools[0]}" for name in on.site.pools if name != pools[0]}


STAGE = Planned("training", training, False, lambda nodes: 0)
