"""Groups, their results, and which of these are good."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from busbar.judge.nccl import Expectation

Stage = Literal["A", "B", "C"]
Kind = Literal["node", "in_group", "cross_group", "rail_in_group", "rail_cross_group"]
PAIRS: tuple[Kind, ...] = ("in_group", "cross_group")

_NAME = re.compile(r"([ABC])(\d{1,4})(?:/rail(\d{1,2}))?/([^/]+)(?:/([^/]+))?")

# The rail group of each node: hosts whose rails end at the same leaf switches. Nodes without one share one.
Places = Mapping[str, str]

# A value below this part of the expected one is bad.
GOOD = 0.9
# With fewer values of a kind, the upper quartile may be a slow one.
FEWEST_FOR_A_QUARTILE = 8
# So many nodes are all compared with each other; and so many may all be slow by themselves.
FEW_NODES = 16


@dataclass(frozen=True, slots=True)
class Group:
    """One run of all_reduce on one or two nodes, over all their rails or one.

    Groups of the same `round` may run at the same time: no node is in two of them. A `rail` is the index of
    an HCA and its GPU, from 0; None: all.
    """

    stage: Stage
    round: int
    kind: Kind
    nodes: tuple[str, ...]
    rail: int | None = None

    @property
    def name(self) -> str:
        """Unique among the groups of a diagnosis; for markers in a log."""
        rail = () if self.rail is None else (f"rail{self.rail}",)
        return "/".join((f"{self.stage}{self.round}", *rail, *self.nodes))

    @classmethod
    def of_name(cls, name: str, places: Places) -> Group | None:
        """The group of a name in a log; None for other texts."""
        found = _NAME.fullmatch(name)
        if found is None or (found[1] == "C") != (found[3] is not None and found[5] is not None):
            return None
        nodes = tuple(node for node in found.groups()[3:] if node)
        stage: Stage = "A" if found[1] == "A" else "B" if found[1] == "B" else "C"
        kind = kind_of(nodes, places, of_rail=stage == "C")
        return cls(stage, int(found[2]), kind, nodes, int(found[3]) if found[3] else None)

    def partner(self, node: str) -> str:
        """The other node of a pair."""
        return self.nodes[1] if self.nodes[0] == node else self.nodes[0]


@dataclass(frozen=True, slots=True)
class Known:
    """What was measured, and what was expected, in GB/s of bus bandwidth.

    A result of None is a run that gave no number: it counts as bad. A kind without an expected value is
    compared with the upper quartile of its own results, if these are enough.
    """

    results: Mapping[Group, float | None] = field(default_factory=dict)
    expected: Mapping[Kind, float] = field(default_factory=dict)

    def with_a_number(self, nodes: int = 1) -> set[str]:
        """The nodes of runs that gave one, of runs on at least so many nodes."""
        runs = (group for group, busbw in self.results.items() if busbw and len(group.nodes) >= nodes)
        return {node for group in runs for node in group.nodes}

    def references(self) -> dict[Kind, float]:
        """What each kind of group should reach; kinds of which nothing can be said are left out."""
        values: dict[Kind, list[float]] = {}
        for group, busbw in self.results.items():
            # Stage B runs the slow ones.
            if busbw is not None and group.stage != "B":
                values.setdefault(group.kind, []).append(busbw)
        upper = {
            kind: statistics.quantiles(found, n=4, method="inclusive")[2]
            for kind, found in values.items()
            if len(found) >= FEWEST_FOR_A_QUARTILE
        }
        return {**upper, **self.expected}

    def shares(self) -> dict[Group, float]:
        """Each result as a part of its reference: 0 without a number; left out without a reference."""
        references = self.references()
        return {
            group: (busbw or 0.0) / references[group.kind]
            for group, busbw in self.results.items()
            if group.kind in references
        }


def kind_of(nodes: Sequence[str], places: Places, *, of_rail: bool = False) -> Kind:
    """The kind of a run on these nodes, over all their rails or one."""
    if len(nodes) == 1:
        return "node"
    if len({places.get(node, "") for node in nodes}) > 1:
        return "rail_cross_group" if of_rail else "cross_group"
    return "rail_in_group" if of_rail else "in_group"


def by_place(nodes: Iterable[str], places: Places) -> dict[str, list[str]]:
    """The nodes of each rail group."""
    members: dict[str, list[str]] = {}
    for node in nodes:
        members.setdefault(places.get(node, ""), []).append(node)
    return members


def expected_busbw(system: Expectation) -> dict[Kind, float]:
    """The bandwidth that each kind of group should reach, in GB/s; unknown kinds are left out.

    They are all pairs across rail groups, because it is not known what the uplinks carry.
    """

    def least(**shape: int) -> float | None:
        """The least that a public result of such a system shows."""
        return system.model_copy(update=shape).bounds("all_reduce").healthy

    found: dict[Kind, float | None] = {"node": least(nodes=1), "in_group": least(nodes=2)}
    # Inside an NVLink domain of several hosts a pair does not use its rails.
    if system.rails == system.gpus_per_node and system.nodes_per_domain == 1:
        found["rail_in_group"] = least(nodes=2, rails=1, gpus_per_node=1)
    return {kind: busbw for kind, busbw in found.items() if busbw}
