"""What a diagnosis has found: rows for the table, healthy nodes, what to run next, and all of it as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict, dataclass

from busbar.exits import DONE, FAILED, NO_VERDICT
from busbar.fabric.diagnosis.stages import Scope, State, known_of
from busbar.fabric.localise import Group, Known
from busbar.fabric.localise.groups import GOOD
from busbar.fabric.localise.score import Suspect, score
from busbar.text import counted, listed

COLUMNS = ("slow", "where", "measured", "expected", "runs", "partners")
# Commands are shown for so many of the nodes of a group in which some are slow.
_SHOWN = 4
# Names in a line.
_MOST = 12
_CAUSES = {
    "node": "node",
    "rail": "rail",
    "nvlink": "NVLink inside the node",
    "leaf": "leaf switch",
    "uplink": "uplinks",
    "settings": "settings, or what all nodes share",
}


@dataclass(frozen=True)
class Row:
    """One thing that is slow.

    `where`: the node, rail group or both, with the rail; of several nodes it is one or more. `measured` and
    `expected` in GB/s: the median of its runs, of a rail the better one; of what is only slower than its
    peers, both medians. None: no run gave a number, or nothing is expected. `reasons`: why runs gave none,
    and conditions of the nodes.
    """

    cause: str
    where: str
    nodes: tuple[str, ...]
    rail: int | None
    hca: str
    measured: float | None
    expected: float | None
    runs: int
    partners: tuple[str, ...]
    reasons: tuple[str, ...]
    next: tuple[str, ...]

    @property
    def summary(self) -> str:
        """Such as `rail 2 (mlx5_2) 25 of 50 GB/s`, without the node."""
        what = self.cause if self.rail is None else _of_rail(self.rail, self.hca)
        if self.measured is None:
            return f"{what} without a result"
        return f"{what} {self.measured:g}" + (f" of {self.expected:g} GB/s" if self.expected else " GB/s")

    @property
    def texts(self) -> tuple[str, ...]:
        """The cells of COLUMNS."""
        measured = "no result" if self.measured is None else f"{self.measured:g} GB/s"
        expected = "not known" if self.expected is None else f"{self.expected:g} GB/s"
        return self.cause, self.where, measured, expected, str(self.runs), listed(self.partners, _MOST)


@dataclass(frozen=True)
class Findings:
    """Of one pool. `absent`: node -> why it was not measured. `undecided`: nodes with too few runs.

    `not_judged`: nodes of which it is not known whether they are 10 % slow. `spread`: of one run, relative; 0
    where it is not known. `stopped`: why it ended before its last stage; empty where it did not.
    `recovered`: runs that were slow between nodes that were good in other runs, each as a line.
    """

    pool: str
    rows: tuple[Row, ...]
    healthy: tuple[str, ...]
    absent: dict[str, str]
    undecided: tuple[str, ...]
    stopped: str
    runs: int
    seconds: float
    node_minutes: float
    not_judged: tuple[str, ...] = ()
    spread: float = 0.0
    recovered: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: each node was measured and is good; 1: something is named; 2: neither."""
        if self.rows:
            return FAILED
        return NO_VERDICT if self.absent or self.undecided or self.stopped or not self.healthy else DONE

    def lines(self) -> Iterator[str]:
        """All that is not in the rows."""
        for row in self.rows:
            yield from (f"reason  {row.where}: {reason}" for reason in row.reasons)
        for command in dict.fromkeys(command for row in self.rows for command in row.next):
            yield f"next    {command}"
        for node, why in self.absent.items():
            yield f"not measured  {node}: {why}"
        if self.undecided:
            yield f"not decided   {listed(self.undecided, _MOST)}: too few runs with healthy partners"
        if self.not_judged:
            vary = f"single runs vary by {self.spread:.0%}"
            why = vary if self.spread else "they have too few runs or peers"
            yield f"not judged    {listed(self.not_judged, _MOST)}: whether they are 10 % slow, because {why}"
        yield from (f"slow once     {line}" for line in self.recovered[:_MOST])
        if len(self.recovered) > _MOST:
            yield f"slow once     {len(self.recovered) - _MOST} more runs: see --json"
        if self.stopped:
            yield f"stopped       {self.stopped}"
        some = f"{len(self.healthy)}: {listed(self.healthy, _MOST)}"
        yield f"healthy       {some if self.healthy else 'none'}"
        yield f"{counted(self.runs, 'run')} in {self.seconds:.0f} s, {self.node_minutes:g} node-minutes"

    def as_json(self, stack: str, state: State, scope: Scope) -> str:
        """One object: `stack`, the fields of this class, and each run with its share of the expected one."""
        shares = known_of(state, scope).shares()
        results = [
            {"name": run.name, **asdict(run), "busbw": busbw, "share": shares.get(run), "reason": reason}
            for run, busbw, reason in state.results
        ]
        return json.dumps({"stack": stack, **asdict(self), "results": results}, indent=1)


def findings_of(state: State, scope: Scope) -> Findings:
    known = known_of(state, scope)
    found = score(known, scope.places)
    reasons = {group: reason for group, _, reason in state.results if reason}
    rows = [row for suspect in found.suspects for row in _rows(suspect, known, state, reasons)]
    # A node alone shows nothing of its rails.
    paired = known.with_a_number(2)
    good = {node for node in found.healthy if node in paired or len(state.nodes) == 1}
    healthy = tuple(node for node in state.nodes if node in good)
    named = {node for row in rows for node in row.nodes}
    unclear = [n for n in state.present if n not in {*healthy, *found.confirmed, *found.slow_alone, *named}]
    return Findings(
        pool=scope.pool,
        rows=tuple(rows),
        healthy=healthy,
        absent=dict(sorted(state.absent.items())),
        undecided=tuple(unclear),
        stopped=state.stopped,
        runs=len(state.results),
        seconds=round(state.seconds, 1),
        node_minutes=round(state.node_seconds / 60, 1),
        not_judged=tuple(node for node in healthy if node in found.unclear),
        spread=round(found.spread, 3),
        recovered=tuple(_recovered(known, good, {group for each in found.suspects for group in each.runs})),
    )


def _recovered(known: Known, healthy: Container[str], explained: Container[Group]) -> Iterator[str]:
    """The slow runs of healthy nodes that nothing slow explains, each with what it reached."""
    references = known.references()
    for group, share in known.shares().items():
        if share < GOOD and group not in explained and all(node in healthy for node in group.nodes):
            busbw = known.results[group]
            reached = "no result" if busbw is None else f"{busbw:g} GB/s"
            rail = "" if group.rail is None else f" rail {group.rail}"
            yield (
                f"{' with '.join(group.nodes)}{rail}: {reached} of {references[group.kind]:g} GB/s in stage "
                f"{group.stage}, good in other runs"
            )


def _rows(suspect: Suspect, known: Known, state: State, reasons: dict[Group, str]) -> Iterator[Row]:
    """One row, or one per rail."""
    references, names = known.references(), sorted(suspect.nodes or suspect.rail_groups)
    one_of = "one of " if len(names) > 1 else ""
    for rail in suspect.rails or (None,):
        runs = [group for group in suspect.runs if rail is None or group.rail == rail]
        values = [known.results[group] for group in runs]
        numbers = [value for value in values if value is not None]
        better = max if suspect.cause == "rail" and suspect.peers is None else statistics.median_low
        expected = suspect.peers or (references.get(runs[0].kind) if runs else None)
        hca = state.hcas[rail] if rail is not None and rail < len(state.hcas) else ""
        partners = sorted({node for group in runs for node in group.nodes} - {*suspect.nodes})
        of_rail = "" if rail is None else _of_rail(rail, hca)
        told = {reasons[group] for group in runs if group in reasons}
        conditions = [(node, each) for node in suspect.nodes for each in state.reported.get(node, ())]
        yield Row(
            cause=_CAUSES[suspect.cause],
            where=f"{one_of}{', '.join(names)} {of_rail}".strip() or "all",
            nodes=suspect.nodes,
            rail=rail,
            hca=hca,
            measured=round(better(numbers), 3) if numbers else None,
            expected=round(expected, 3) if expected else None,
            runs=len(runs),
            partners=tuple(partners) if len(suspect.nodes) == 1 else (),
            reasons=(*sorted(told), *(f"{node}: condition {each}" for node, each in conditions)),
            next=tuple(_next(suspect, hca or next(iter(state.hcas), ""), partners)),
        )


def _of_rail(rail: int, hca: str) -> str:
    return f"rail {rail} ({hca})" if hca else f"rail {rail}"


def _next(suspect: Suspect, hca: str, partners: Sequence[str]) -> Iterator[str]:
    """What to run next. The commands of a rail need two shells: the first one waits for the second."""
    node, *others = sorted(suspect.nodes) or [""]
    # When one of a pair is slow, use the other as its partner.
    partners = partners or others[:1]
    if suspect.cause in ("node", "rail") and not hca:
        yield f"on {node}: ibv_devinfo -l (with them as validation.hcas, busbar diagnose tries each rail)"
    elif suspect.cause in ("node", "rail") and partners:
        yield f"on {node}: ib_write_bw -d {hca} --report_gbits -D 10"
        yield f"on {partners[0]}: ib_write_bw -d {hca} --report_gbits -D 10 {node}"
    if suspect.cause in ("node", "nvlink"):
        yield from (f"on {each}: nvidia-smi nvlink -e" for each in [node, *others][:_SHOWN])
    if suspect.cause in ("node", "rail", "leaf", "uplink"):
        yield "ibdiagnet"
    if suspect.cause == "settings":
        yield "busbar nccl check LOG --full (of the pool's last measurement)"
