"""Nodes x rails as a heat map, a section of a page. No script, font or link."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from busbar.fabric.localise import Group
from busbar.fabric.localise.groups import GOOD, by_place
from busbar.judge.nccl.report.svg import template
from busbar.text import natural

LABEL = 6.2  # px of a character of a node's name
TALLEST = 40  # nodes of a block: those of a larger rail group have several
# From the share of the expected value: a colour per step, the same in light and dark.
STEPS = ((1 / 3, "#7f1d1d"), (0.6, "#b3261e"), (0.8, "#e4572e"), (GOOD, "#f2a65a"), (math.inf, "#2e9e5b"))


@dataclass
class Cells:
    """The best runs of a node: alone, of its pairs, of each rail. None: no result."""

    alone: float | None = None
    pair: float | None = None
    rails: dict[int, float] = field(default_factory=dict)


def cells_of(values: Mapping[Group, float]) -> dict[str, Cells]:
    """The best run of each node, by shares or GB/s: one good pair shows that all its rails are good."""
    found: dict[str, Cells] = {}
    for group, value in values.items():
        for node in group.nodes:
            cells = found.setdefault(node, Cells())
            if group.rail is not None:
                cells.rails[group.rail] = max(value, cells.rails.get(group.rail, 0.0))
            elif len(group.nodes) == 1:
                cells.alone = max(value, cells.alone or 0.0)
            else:
                cells.pair = max(value, cells.pair or 0.0)
    return found


def heat_map(
    cells: Mapping[str, Cells],
    nodes: Sequence[str],
    absent: Mapping[str, str],
    places: Mapping[str, str],
    rails: int,
) -> Markup:
    """A section of a page, one row per node: alone, in pairs, each rail, as shares of what was expected.

    There is one SVG per rail group, so that the page wraps them. ABSENT: node -> why it was not measured.
    """
    groups = sorted(by_place(nodes, places).items(), key=lambda group: natural(group[0]))
    blocks = [
        (place or "nodes", [(node, _row(node, cells, absent, rails)) for node in names[at : at + TALLEST]])
        for place, names in groups
        for at in range(0, len(names), TALLEST)
    ]
    limits = [0.0, *(limit for limit, _ in STEPS)]
    steps = [
        (colour, f"{100 * low:.0f} % " + (f"to {100 * limit:.0f} %" if limit < math.inf else "and more"))
        for low, (limit, colour) in zip(limits, STEPS, strict=False)
    ]
    label = round(max(map(len, nodes)) * LABEL + 6)
    shown = template("busbar.fabric.diagnosis", "heat.html.j2")
    return Markup(shown.render(blocks=blocks, rails=rails, label=label, steps=steps))


def _row(
    node: str, cells: Mapping[str, Cells], absent: Mapping[str, str], rails: int
) -> list[tuple[str, str, str]]:
    """The cells of a node: text, class and colour. A rail that was not tried has that of the pair, paler."""
    if node in absent:
        return [(f"{node}: not measured: {absent[node]}", "u", "")]
    found = cells.get(node, Cells())
    shown = [("alone", found.alone, True), ("in pairs", found.pair, True)]
    shown += [(f"rail {n}", found.rails.get(n, found.pair), n in found.rails) for n in range(rails)]
    row = []
    for what, share, tried in shown:
        kind, more = ("", "") if tried else ("i", " (of its pairs)")
        if share is None:
            row.append((f"{node}, {what}: not known", "u", ""))
        else:
            text = f"{node}, {what}: {100 * share:.0f} % of the expected value{more}"
            row.append((text, kind, next(colour for limit, colour in STEPS if share < limit)))
    return row
