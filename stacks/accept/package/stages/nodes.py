"""Each node alone, pairs, and every rail: stages of the diagnosis, whose logs are judged again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import ClassVar

from busbar.exits import NoVerdict
from busbar.fabric.diagnosis.kubernetes import InCluster, scope_of
from busbar.fabric.diagnosis.stages import Diagnosis, State, expected_of
from busbar.fabric.localise import Group, Known, Stage, plan_rails
from busbar.fabric.localise.peers import SLOW
from busbar.hosts.inventory import Inventory
from busbar.text import counted
from stacks.accept.package.evidence import Evidence, Untrusted, stage_job
from stacks.accept.package.rows.nodes import NO_NVLINK
from stacks.accept.package.site import validation_of
from stacks.accept.package.stages.collectives import START_SECONDS, clean_up, keep_logs, plan_when_free
from stacks.accept.package.stages.running import Planned, Running

# Runs of each node alone, and again of those whose better run is low. One run of 60 dips.
RUNS_ALONE = 2
# Seconds of the start of a job of few nodes, and of a run of a node alone, a pair, and one rail
# (docs/localise.md).
FEW_SECONDS, ALONE_SECONDS, PAIR_SECONDS, RAIL_SECONDS = 30, 20, 36, 22.5


class _Numbered(Diagnosis):
    """A diagnosis that keeps the log of each of its jobs."""

    def folder(self, stage: Stage) -> Path:
        return self.scope.folder / f"{len([*self.scope.folder.glob('*/')]):03}"


class Alone(_Numbered):
    """Each node alone, then again those that may be slow."""

    stages: ClassVar[tuple[Stage, ...]] = ("A", "B")

    def groups(self, state: State, stage: Stage) -> list[Group]:
        best: dict[str, float] = {}
        for group, busbw, _ in state.results:
            best[group.nodes[0]] = max(best.get(group.nodes[0], 0.0), busbw or 0.0)
        usual = max(median(best.values() or [0.0]), expected_of(self.scope).get("node", 0.0))
        nodes = [node for node in state.present if stage == "A" or best.get(node, usual) < SLOW * usual]
        return [Group(stage, number, "node", (node,)) for number in range(RUNS_ALONE) for node in nodes]


class Pairs(_Numbered):
    """Pairs inside and across rail groups, then again those that may be slow."""

    stages: ClassVar[tuple[Stage, ...]] = ("A", "B")

    def groups(self, state: State, stage: Stage) -> list[Group]:
        return [group for group in super().groups(state, stage) if len(group.nodes) == 2]


class Rails(_Numbered):
    """Every rail of every node, then again those that may be slow."""

    stages: ClassVar[tuple[Stage, ...]] = ("C",)

    def groups(self, state: State, stage: Stage) -> list[Group]:
        known = Known({group: busbw for group, busbw, _ in state.results})
        scope, seed = self.scope, int(state.began)
        return [*plan_rails(state.present, scope.places, known, rails=scope.hardware.rails, seed=seed)]


class AloneAgain(Alone):
    """Each node alone, in short."""

    stages: ClassVar[tuple[Stage, ...]] = ("A",)


class PairsAgain(Pairs):
    """Pairs, in short."""

    stages: ClassVar[tuple[Stage, ...]] = ("A",)


Jobs = Sequence[tuple[type[_Numbered], Mapping[str, str]]]
"""The diagnoses that run, each with its environment."""


def diagnose(stage: str, jobs: Jobs, on: Running) -> dict[str, str]:
    """Run a stage on all workers of each pool. Raises NoVerdict."""
    notes: dict[str, str] = {}
    names = {pool: stage_job(on.run, stage, number) for number, pool in enumerate(on.site.pools)}
    clean_up(on, names.values())
    for pool, facts in on.site.pools.items():
        hcas = _hcas(on, pool) if stage == "rails" else ()
        if len(facts.workers) < (1 if stage == "nvlink" else 2):
            notes[pool] = f"the pool has {counted(len(facts.workers), 'worker')} that is not in quarantine"
        elif stage == "rails" and len(hcas) != facts.required.rails:
            notes[pool] = (
                f"NCCL named {len(hcas)} HCAs for {facts.required.rails} rails. Fix: validation.hcas"
            )
        for what, env in jobs if pool not in notes else ():
            _run(on, on.at(stage) / pool, pool, names[pool], what, env, hcas)
    return notes


def _run(
    on: Running,
    folder: Path,
    pool: str,
    name: str,
    what: type[_Numbered],
    env: Mapping[str, str],
    hcas: tuple[str, ...],
) -> None:
    own, inventory = on.cluster.validation_of(pool), Inventory.of(on.cluster)
    validation = validation_of(own, ["all_reduce"], NCCL_RUN_DIAGNOSTICS="1", **env)
    nodes = [*on.site.pools[pool].workers]
    plan_when_free(on, pool, name, validation, nodes=nodes)
    runner = InCluster(
        on.api,
        inventory,
        pool,
        on.file.project,
        on.clock,
        on.say,
        name,
        validation,
        on.idle,
        on.options,
        on.kubeconfig is not None,
    )
    scope = scope_of(inventory, pool, nodes, folder)
    scope = replace(scope, validation=own.model_copy(update={"hcas": [*hcas] or own.hcas}))
    folder.mkdir(parents=True, exist_ok=True)
    found = what(runner, scope, on.clock, on.say).run()
    keep_logs(folder)
    if found.stopped:
        raise NoVerdict(f"pool {pool}: {found.stopped}")


def _hcas(on: Running, pool: str) -> tuple[str, ...]:
    """The HCAs by rail: those of the configuration, else those that NCCL named in runs of a node alone."""
    if configured := on.cluster.validation_of(pool).hcas:
        return tuple(configured)
    try:
        return next((runs.hcas for runs in Evidence(on.folder).runs("nvlink", pool) if runs.hcas), ())
    except Untrusted:
        return ()


def _seconds(first: float, again: float) -> Callable[[int], int]:
    return lambda nodes: round(START_SECONDS + first + FEW_SECONDS + again)


_ALONE = RUNS_ALONE * ALONE_SECONDS
NVLINK = Planned(
    "nvlink",
    partial(diagnose, "nvlink", ((Alone, {}), (Alone, {NO_NVLINK: "1", "NCCL_SHM_DISABLE": "1"}))),
    True,
    _seconds(_ALONE, START_SECONDS - FEW_SECONDS + _ALONE),
)
PAIRS = Planned(
    "pairs", partial(diagnose, "pairs", ((Pairs, {}),)), True, _seconds(2 * PAIR_SECONDS, 7 * PAIR_SECONDS)
)
# Eight rails, with two rounds each. Of 440 healthy nodes 26 rounds run again at a spread of 3 % with dips,
# and none where runs hardly vary.
RAILS = Planned(
    "rails", partial(diagnose, "rails", ((Rails, {}),)), True, _seconds(16 * RAIL_SECONDS, 15 * RAIL_SECONDS)
)
# After the soak, in short, to be compared with before.
AFTER = Planned(
    "after",
    partial(diagnose, "after", ((AloneAgain, {}), (PairsAgain, {}))),
    True,
    _seconds(_ALONE, START_SECONDS - FEW_SECONDS + 2 * PAIR_SECONDS),
)
