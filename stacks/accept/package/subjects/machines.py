"""The machines: every stage asks the workers who they are, and this one asks once more at the end."""

from __future__ import annotations

from busbar.text import counted
from stacks.accept.package.evidence import MACHINES, time_of
from stacks.accept.package.kinds import Finding, Question, kind, sentences
from stacks.accept.package.running import Planned

# Hours in which a run must end, with the soak besides; and those that criteria may allow.
AGE_HOURS, MOST_HOURS = 168.0, 2160.0


@kind(f"{MACHINES}.same", "the same machines, GPUs and HCAs from the first stage to the last")
def _same(asked: Question) -> Finding:
    met, workers, changes = asked.evidence.met, asked.pool.workers, asked.evidence.changes(asked.name)
    if changes.exchanged:
        return Finding("fail", sentences([what for _, what in sorted(changes.exchanged.values())]))
    if not met or met[-1][0] != MACHINES or not workers:
        return Finding("unknown", "nobody was asked at the end")
    last = met[-1][1]
    if silent := last.silent(workers, "no answer"):
        return Finding("unknown", f"not known at the end: {sentences(silent)}")
    known = {name: {*last.hosts[name].gpus, *last.hosts[name].hcas} for name in workers}
    if lost := [
        f"{name} does not show {part} any more"
        for name, before in changes.known.items()
        for part in before.gpus + before.hcas
        if part not in known[name]
    ]:
        return Finding("unknown", sentences(lost))
    by = "" if any(each.gpus for each in last.hosts.values()) else ", by machine id alone"
    named = f"; rebooted: {sentences(changes.reboots)}" if changes.reboots else ""
    return Finding("pass", f"{counted(len(workers), 'node')}, asked {len(met)} times{by}{named}")


@kind(
    f"{MACHINES}.age", "time from the begin of the run to its end", "h",
    lambda pool: AGE_HOURS + pool.soak_hours, "7 days, and the soak", MOST_HOURS, least=False,
)  # fmt: skip
def _age(asked: Question) -> Finding:
    stage, begun = asked.evidence.stage(MACHINES), asked.evidence.begun
    if stage is None:
        return Finding("unknown", "the run has not ended")
    hours = (time_of(stage.ended) - time_of(begun.began)) / 3600
    return Finding("pass", f"{hours:.3g} h, from {begun.began} to {stage.ended}", round(hours, 3))


STAGE = Planned(MACHINES, lambda on: {}, False, lambda nodes: 10)
