"""Each node alone, pairs, and every rail, as stages of the diagnosis: the slow ones are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median, median_high
from typing import Any

from busbar.exits import NoVerdict
from busbar.fabric.diagnosis.kubernetes import InCluster, scope_of
from busbar.fabric.diagnosis.stages import Diagnosis, State, comparable, expected_of
from busbar.fabric.localise import Group, Known, Stage, plan_rails, score
from busbar.fabric.localise.groups import GOOD
from busbar.fabric.localise.peers import SLOW, rails_of_all
from busbar.hosts.inventory import Inventory
from busbar.text import counted, listed
from stacks.accept.package.evidence import Evidence, or_none
from stacks.accept.package.kinds import Finding, Question, counting, kind, sentences
from stacks.accept.package.running import START_SECONDS, Planned, Running, keep_logs
from stacks.accept.package.site import Pool, validation_of

# Without an expected value so many other nodes must be there to compare with.
FEWEST_OTHERS = 2
FEWEST_FOR_PAIRS = 16
_SHOWN = 8


def _on_rails(pool: Pool) -> bool:
    """False for a pool over TCP, where no rail has an expected busbw."""
    return "rail_in_group" in pool.group_gbps


def _expected(pool: Pool, *, of_rails: bool) -> dict[str, Any]:
    kinds = (kind for kind in pool.group_gbps if kind != "node" and kind.startswith("rail_") == of_rails)
    return {kind: round(pool.group_gbps[kind], 3) for kind in kinds}


def _results(asked: Question) -> dict[Group, float | None]:
    return asked.evidence.results(asked.name, asked.row.parts[0])


def by_node(asked: Question, *stages: str) -> dict[tuple[str, str], float]:
    """Node, and alone or in pairs -> GB/s: the better one of two runs, the second best of four."""
    found: dict[tuple[str, str], list[float]] = {}
    for group, busbw in asked.evidence.results(asked.name, *stages).items():
        for node in group.nodes:
            how = "alone" if len(group.nodes) == 1 else "pairs"
            found.setdefault((node, how), []).append(busbw or 0.0)
    return {key: median_high(values) for key, values in found.items()}


@kind(
    "nvlink.busbw", "busbw of the slowest node alone, over NVLink", "% of the expected busbw",
    lambda pool: 100 * GOOD, "expected busbw: {origin}; without one the median of the other nodes",
    100, expects=lambda pool, _: {"gbps": pool.group_gbps.get("node")},
    required=lambda pool: "node" in pool.group_gbps or len(pool.workers) > FEWEST_OTHERS,
    when=lambda pool: pool.required.gpus > 1,
)  # fmt: skip
def _nvlink(asked: Question) -> Finding:
    expected = asked.pool.group_gbps.get("node")
    reached = {name: busbw for (name, _), busbw in by_node(asked, "nvlink").items()}
    shares: dict[str, float] = {}
    for name, busbw in reached.items():
        others = [other for node, other in reached.items() if node != name]
        if usual := expected or (median(others) if len(others) >= FEWEST_OTHERS else 0.0):
            shares[name] = round(100 * busbw / usual, 2)
    silent = [name for name in asked.pool.workers if name not in reached]
    bad = [name for name in shares if shares[name] < (asked.row.threshold or 0)]
    if silent and not bad:
        return Finding("unknown", f"no run of {listed(silent, _SHOWN)}")
    if not shares:
        return Finding("unknown", f"{counted(len(reached), 'node')}: too few others to compare with")
    shown = sorted(bad or [min(shares, key=shares.__getitem__)], key=shares.__getitem__)
    text = sentences([f"{name} {reached[name]:g} GB/s, {shares[name]:g} %" for name in shown], _SHOWN)
    against = f"of {expected:g} GB/s" if expected else "of the median of the other nodes"
    return Finding("pass", f"{'' if bad else 'slowest: '}{text} {against}", min(shares.values()), bad)


@counting("pairs.nodes", "nodes that took part", nodes=2)
def _in_pairs(asked: Question) -> Finding:
    return asked.took_part({node for group in _results(asked) for node in group.nodes})


@kind(
    "pairs.slow", "no node is 10 % slow, and no leaf or uplink slow", source="expected busbw: {origin}",
    expects=lambda pool, _: _expected(pool, of_rails=False), nodes=2,
    required=lambda pool: "in_group" in pool.group_gbps or len(pool.workers) >= FEWEST_FOR_PAIRS,
)  # fmt: skip
def _slow_pairs(asked: Question) -> Finding:
    results = {group: busbw for group, busbw in _results(asked).items() if len(group.nodes) == 2}
    known = comparable(Known(results, asked.pool.group_gbps))
    found = score(known, asked.pool.rail_groups)
    texts, bad = [], []
    for each in found.suspects:
        names = sorted(each.nodes or each.rail_groups)
        reached = _median(results, each.runs)
        expected = each.peers or known.references().get(each.runs[0].kind, 0.0)
        what = f"one of {', '.join(names)}" if len(names) > 1 else "".join(names) or "all"
        runs = counted(len(each.runs), "run")
        texts.append(f"{each.cause} {what}: {reached:g} of {expected:g} GB/s in {runs}")
        bad += names if each.nodes and len(names) == 1 else []
    nodes = {node for group in results for node in group.nodes}
    # Two nodes have no peers: the expected busbw alone decides.
    judged = [node for node in found.healthy if node not in found.unclear or len(nodes) == 2]
    open_ = [f"{node} (too few runs or peers)" for node in sorted(nodes - {*judged})]
    none = [] if judged else ["no run has a result that can be compared"]
    good = f"{counted(len(judged), 'node')} in {counted(len(results), 'run')}"
    return Finding.of(texts, open_ or none, good, *bad)


_OF_RAILS: Any = {"required": _on_rails, "when": lambda pool: pool.required.rails > 1, "nodes": 2}


@counting("rails.nodes", "nodes of which every rail ran", **_OF_RAILS)
def _with_rails(asked: Question) -> Finding:
    ran = {(node, group.rail) for group in _results(asked) for node in group.nodes}
    rails = range(asked.pool.required.rails)
    return asked.took_part({node for node, _ in ran if all((node, rail) in ran for rail in rails)})


@kind(
    "rails.slow", "no rail of a node is 10 % slow", source="expected busbw: {origin}", **_OF_RAILS,
    expects=lambda pool, _: _expected(pool, of_rails=True),
)  # fmt: skip
def _slow_rails(asked: Question) -> Finding:
    results = _results(asked)
    known = Known(results, asked.pool.group_gbps)
    before, again = rails_of_all(known)
    nodes = sorted({node for group in results for node in group.nodes})
    hcas = named_hcas(asked.evidence, asked.name)
    texts = []
    for (node, rail), (runs, peers) in sorted(again.slow.items()):
        where = " or ".join(nodes) if len(nodes) == 2 else node
        name = f" ({hcas[rail]})" if rail < len(hcas) else ""
        reached = f"{_median(results, runs):g} of {peers:g} GB/s in {counted(len(runs), 'run')}"
        texts.append(f"rail {rail}{name} of {where}: {reached}")
    bad = sorted({node for node, _ in again.slow}) if len(nodes) > 2 else []
    shares = known.shares()
    if not texts and shares and (share := median(shares.values())) < GOOD:
        texts = [f"all rails: the median run reaches {share:.0%} of the expected busbw"]
    unclear = [part for part in before.unclear if part in again.unclear or part not in again.level]
    open_ = [f"rail {rail} of {node} (too few runs or peers)" for node, rail in sorted(unclear)]
    none = [] if before.level else ["no run has a result that can be compared"]
    good = f"{counted(len(before.level), 'rail')} in {counted(len(results), 'run')}"
    return Finding.of(texts, open_ or none, good, *bad)


def _median(results: Mapping[Group, float | None], runs: tuple[Group, ...]) -> float:
    return median(results[group] or 0.0 for group in runs)


# Runs of each node alone, and again of those whose better run is low. One run of 60 dips.
RUNS_ALONE = 2
# Seconds of the start of a job of few nodes, and of its runs (docs/localise.md).
FEW_SECONDS, ALONE_SECONDS, PAIR_SECONDS, RAIL_SECONDS = 30, 20, 36, 22.5


class _Numbered(Diagnosis):
    """A diagnosis that keeps the log of each of its jobs."""

    def folder(self, stage: Stage) -> Path:
        return self.scope.folder / f"{len([*self.scope.folder.glob('*/')]):03}"


class Alone(_Numbered):
    """Each node alone, in stage B those that may be slow."""

    def groups(self, state: State, stage: Stage) -> list[Group]:
        best: dict[str, float] = {}
        for group, busbw, _ in state.results:
            best[group.nodes[0]] = max(best.get(group.nodes[0], 0.0), busbw or 0.0)
        usual = max(median(best.values() or [0.0]), expected_of(self.scope).get("node", 0.0))
        nodes = [node for node in state.present if stage == "A" or best.get(node, usual) < SLOW * usual]
        return [Group(stage, number, "node", (node,)) for number in range(RUNS_ALONE) for node in nodes]


class Pairs(_Numbered):
    """Pairs inside and across rail groups, in stage B those that may be slow."""

    def groups(self, state: State, stage: Stage) -> list[Group]:
        return [group for group in super().groups(state, stage) if len(group.nodes) == 2]


class Rails(_Numbered):
    """Every rail of every node, then again those that may be slow."""

    def groups(self, state: State, stage: Stage) -> list[Group]:
        known = Known({group: busbw for group, busbw, _ in state.results})
        scope, seed = self.scope, int(state.began)
        return [*plan_rails(state.present, scope.places, known, rails=scope.hardware.rails, seed=seed)]


Job = tuple[type[_Numbered], tuple[Stage, ...]]
"""A diagnosis, and the stages that it has."""


def diagnose(stage: str, jobs: Sequence[Job], on: Running) -> dict[str, str]:
    """Run a stage on all workers of each pool. Raises NoVerdict."""
    notes: dict[str, str] = {}
    on.clean_up(*(on.begun.job(stage, pool) for pool in on.pools))
    for pool, facts in on.pools.items():
        hcas = tuple(on.cluster.validation_of(pool).hcas)
        if stage == "rails" and not hcas:
            hcas = or_none(partial(named_hcas, Evidence(on.folder), pool)) or ()
        if len(facts.workers) < 2 and stage != "nvlink":
            notes[pool] = "the pool has 1 worker that is not in quarantine"
        elif stage == "rails" and len(hcas) != facts.required.rails:
            found = f"NCCL named {len(hcas)} HCAs for {facts.required.rails} rails"
            notes[pool] = f"{found}. Fix: validation.hcas"
        else:
            for job in jobs:
                _run(on, stage, pool, job, hcas)
    return notes


def _run(on: Running, stage: str, pool: str, job: Job, hcas: tuple[str, ...]) -> None:
    what, parts = job
    own, inventory, folder = on.cluster.validation_of(pool), Inventory.of(on.cluster), on.at(stage) / pool
    validation = validation_of(own, ["all_reduce"], NCCL_RUN_DIAGNOSTICS="1")
    nodes, name = on.pools[pool].workers, on.begun.job(stage, pool)
    on.plan(pool, name, validation, nodes=nodes)
    runner = InCluster(
        on.api, inventory, pool, on.file.project, on.clock, on.say, name, validation, on.idle, on.options,
        on.kubeconfig is not None,
    )  # fmt: skip
    scope = scope_of(inventory, pool, nodes, folder)
    scope = replace(scope, validation=own.model_copy(update={"hcas": [*hcas]}))
    folder.mkdir(parents=True, exist_ok=True)
    found = what(runner, scope, on.clock, on.say, stages=parts).run()
    keep_logs(folder)
    if found.stopped:
        raise NoVerdict(f"pool {pool}: {found.stopped}")


def named_hcas(evidence: Evidence, pool: str) -> tuple[str, ...]:
    """The HCAs by rail that NCCL has named."""
    return next((each.hcas for each in evidence.runs("nvlink", pool) if each.hcas), ())


def _diagnosing(stage: str, jobs: Sequence[Job], first: float, again: float) -> Planned:
    """A stage; FIRST and AGAIN: seconds of the first runs and of those that follow."""
    seconds = round(START_SECONDS + first + FEW_SECONDS + again)
    return Planned(stage, partial(diagnose, stage, jobs), True, lambda nodes: seconds)


# Seconds of all runs alone.
_ALONE = RUNS_ALONE * ALONE_SECONDS
NVLINK = _diagnosing("nvlink", [(Alone, ("A", "B"))], _ALONE, _ALONE)
PAIRS = _diagnosing("pairs", [(Pairs, ("A", "B"))], 2 * PAIR_SECONDS, 7 * PAIR_SECONDS)
# Eight rails, with two rounds each. Of 440 healthy nodes 26 rounds run again at a spread of 3 % with dips.
RAILS = _diagnosing("rails", [(Rails, ("C",))], 16 * RAIL_SECONDS, 15 * RAIL_SECONDS)
# After the soak, in short, to be compared with before. The second job starts all nodes, as the first one.
AFTER = _diagnosing(
    "after", [(Alone, ("A",)), (Pairs, ("A",))], _ALONE, START_SECONDS - FEW_SECONDS + 2 * PAIR_SECONDS
)
