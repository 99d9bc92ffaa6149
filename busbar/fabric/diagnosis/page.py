"""The page of a diagnosis: what is slow, and nodes x rails as a heat map. No script, font or link."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path

from jinja2 import Environment, Template
from markupsafe import Markup

from busbar.fabric.diagnosis.findings import Findings
from busbar.fabric.diagnosis.stages import Scope, State, known_of
from busbar.fabric.localise import Known
from busbar.fabric.localise.groups import GOOD, by_place
from busbar.judge.nccl.report.html import DATE, style

PAGE = "diagnosis.html"
ROW, CELL = 12, 14  # px
LABEL = 6.2  # px of a character of a node's name
TALLEST = 40  # nodes of a block: those of a larger rail group have several
NO_GROUP = "nodes"

WORDS = {0: ("pass", "Nothing slow"), 1: ("fail", "Slow"), 2: ("unknown", "No verdict")}
# From the share of the expected value: a colour per step, the same in light and dark.
STEPS = ((1 / 3, "#7f1d1d"), (0.6, "#b3261e"), (0.8, "#e4572e"), (GOOD, "#f2a65a"), (math.inf, "#2e9e5b"))


@dataclass
class Cells:
    """Of a node, as shares of what was expected: alone, its best pair, its rails. None: no result."""

    alone: float | None = None
    pair: float | None = None
    rails: dict[int, float] = field(default_factory=dict)


def write_page(state: State, scope: Scope, found: Findings, stack: str) -> Path:
    """Write the page beside the state; its path. Raises OSError."""
    scope.folder.mkdir(parents=True, exist_ok=True)
    path = scope.folder / PAGE
    path.write_text(render(state, scope, found, stack), encoding="utf-8")
    return path


def render(state: State, scope: Scope, found: Findings, stack: str) -> str:
    """The whole HTML page."""
    cells = cells_of(known_of(state, scope))
    grade, word = WORDS[found.exit_code]
    return _template("page").render(
        style=style(),
        title=f"Diagnosis of {stack}, pool {found.pool}",
        found=found,
        grade=grade,
        word=word,
        began=time.strftime(DATE, time.gmtime(state.began)),
        heat=heat_map(cells, state.nodes, state.absent, scope.places, scope.hardware.rails),
    )


@cache
def _template(name: str) -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    file = resources.files("busbar.fabric.diagnosis").joinpath(f"{name}.html.j2")
    text = file.read_text(encoding="utf-8")
    return environment.from_string(text)


def cells_of(known: Known, *, both: bool = False) -> dict[str, Cells]:
    """The best run of each node: one good pair shows that all its rails are good.

    BOTH: a run of a rail is one of both nodes; else of the first, to which the second is a healthy partner.
    """
    found: dict[str, Cells] = {}
    for group, share in known.shares().items():
        for node in group.nodes if both or group.rail is None else group.nodes[:1]:
            cells = found.setdefault(node, Cells())
            if group.rail is not None:
                cells.rails[group.rail] = max(share, cells.rails.get(group.rail, 0.0))
            elif len(group.nodes) == 1:
                cells.alone = max(share, cells.alone or 0.0)
            else:
                cells.pair = max(share, cells.pair or 0.0)
    return found


def heat_map(
    cells: Mapping[str, Cells],
    nodes: Sequence[str],
    absent: Mapping[str, str],
    places: Mapping[str, str],
    rails: int,
) -> Markup:
    """A section of a page, one row per node: alone, in pairs, each rail.

    There is one SVG per rail group, so that the page wraps them. ABSENT: node -> why it was not measured.
    """
    label = max(map(len, nodes)) * LABEL + 6
    blocks = (
        _block(place or NO_GROUP, names[first : first + TALLEST], cells, absent, rails, label)
        for place, names in sorted(by_place(nodes, places).items(), key=_natural)
        for first in range(0, len(names), TALLEST)
    )
    return Markup(_template("heat").render(map=Markup("\n".join(blocks)), steps=_legend()))


def _block(
    place: str,
    nodes: Sequence[str],
    cells: Mapping[str, Cells],
    absent: Mapping[str, str],
    rails: int,
    label: float,
) -> str:
    width, height = math.ceil(label + (2 + rails) * CELL), (len(nodes) + 2) * ROW
    text = f"{place}: {len(nodes)} nodes, {rails} rails, as shares of the expected bandwidth"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="width:{width}px" '
        f'role="img" aria-label="{escape(text)}">',
        f'<text class="h g" x="0" y="{ROW - 2}">{escape(place)}</text>',
    ]
    for number, name in enumerate(["N", "P", *map(str, range(rails))]):
        x = label + number * CELL + CELL / 2
        parts.append(f'<text class="h" x="{x:.0f}" y="{2 * ROW - 3}" text-anchor="middle">{name}</text>')
    for row, node in enumerate(nodes):
        y = (2 + row) * ROW
        parts.append(f'<text class="n" x="0" y="{y + ROW - 3}">{escape(node)}</text>')
        parts += _row(node, cells.get(node, Cells()), absent, label, y, rails)
    return "\n".join([*parts, "</svg>"])


def _row(
    node: str, found: Cells, absent: Mapping[str, str], left: float, y: float, rails: int
) -> Iterator[str]:
    """The cells of a node. A rail that was not tried alone has the colour of the pair, paler."""
    if node in absent:
        note = escape(f"{node}: not measured: {absent[node]}")
        width = (2 + rails) * CELL - 2
        yield (
            f'<rect class="u" x="{left:.0f}" y="{y + 1:.0f}" width="{width}" height="{ROW - 2}">'
            f"<title>{note}</title></rect>"
        )
        return
    shown = [("alone", found.alone, ""), ("in pairs", found.pair, "")]
    for rail in range(rails):
        tried = rail in found.rails
        shown.append((f"rail {rail}", found.rails.get(rail, found.pair), "" if tried else " i"))
    for number, (what, share, more) in enumerate(shown):
        text = "not known" if share is None else f"{100 * share:.0f} % of the expected value"
        kind = "u" if share is None else more.strip()
        fill = "" if share is None else f' fill="{_colour(share)}"'
        about = f"{node}, {what}: {text}{' (of its pairs)' if more and share is not None else ''}"
        yield (
            f'<rect class="{kind}" x="{left + number * CELL:.0f}" y="{y + 1:.0f}" width="{CELL - 2}" '
            f'height="{ROW - 2}"{fill}><title>{escape(about)}</title></rect>'
        )


def _natural(block: tuple[str, list[str]]) -> list[tuple[int, str]]:
    """For an order in which su2 comes before su10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", block[0])]


def _colour(share: float) -> str:
    return next(colour for limit, colour in STEPS if share < limit)


def _legend() -> list[tuple[str, str]]:
    """Colour and meaning of each step."""
    names, before = [], 0.0
    for limit, colour in STEPS:
        end = f"to {100 * limit:.0f} %" if limit < math.inf else "and more"
        names.append((colour, f"{100 * before:.0f} % {end}"))
        before = limit
    return names
