"""Curves as SVG: bandwidth or time against the message size, log2 x axis. No script, no font, no link."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

from busbar.judge.nccl.report.frame import WIDE, Axes, Frame, spread, steps
from busbar.judge.nccl.report.limits import Limit, height, limits
from busbar.judge.nccl.units import duration, gbps, size
from busbar.judge.nccl.verdict import CollectiveResult, Verdict

LABEL_GAP = 15.0
SIZE_GAP = 60.0  # between labels of the x axis
SHORTEST = 36.0  # px of a limit that applies to one size only

Points = list[tuple[int, float]]

# one palette for page and picture: ink, quiet ink, lines, the two halves, limits
STYLE = """
.ink{fill:var(--ink,#1b1f24)} .quiet{fill:var(--quiet,#5b6470)}
.grid{stroke:var(--grid,#e3e6ea);stroke-width:1}
.axis{stroke:var(--quiet,#5b6470);stroke-width:1} .one{stroke:var(--one,#1f6fd0);fill:none;stroke-width:2}
.two{stroke:var(--two,#c2570c);fill:none;stroke-width:2;stroke-dasharray:5 4} .onedot{fill:var(--one,#1f6fd0)}
.twodot{fill:var(--two,#c2570c)} .limit{stroke:var(--bad,#b3261e);stroke-width:1.5;stroke-dasharray:2 4}
.cap{stroke:var(--quiet,#5b6470);stroke-width:1.5;stroke-dasharray:2 4} .badink{fill:var(--bad,#b3261e)}
text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif} .name{font-weight:600;font-size:13px}
"""
DARK = """
@media (prefers-color-scheme:dark){svg{--ink:#e8eaed;--quiet:#9aa4b0;--grid:#2b3139;--one:#6aa9ff;
--two:#ffa35c;--bad:#ff8a80;--paper:#14171a}}
"""


class NoCurveError(ValueError):
    """The log has no table, so there is no curve."""


def curve_svg(
    name: str, result: CollectiveResult, *, inline: bool = False, frame: Frame = WIDE,
    runs: Mapping[int, Sequence[float]] | None = None,
) -> str:  # fmt: skip
    """Busbw of both halves with the limits. INLINE: colours come from the page's variables.

    RUNS: message size -> out-of-place busbw of several runs in GB/s, drawn as a band from lowest to highest.
    """
    points = [p for p in result.curve if p.size_bytes > 0]
    lines = limits(result)
    band = {bytes_: values for bytes_, values in sorted((runs or {}).items()) if bytes_ > 0 and values}
    top = max([height(result, lines), *map(max, band.values())])
    one = [(p.size_bytes, p.out_of_place.busbw_gbps) for p in points]
    two = [(p.size_bytes, p.in_place.busbw_gbps) for p in points]
    axes = _axes(frame, [x for x, _ in one], 0.0, top)
    ticks = [(v, f"{v:g}") for v in steps(top)]
    title = f"{name}: bus bandwidth, GB/s"
    return _picture(title, axes, ticks, one, two, lines, gbps, inline, _band(axes, band))


def time_svg(name: str, result: CollectiveResult, *, inline: bool = False, frame: Frame = WIDE) -> str:
    """Time of both halves, log-log."""
    points = [p for p in result.curve if p.size_bytes > 0 and p.out_of_place.time_us > 0]
    one = [(p.size_bytes, p.out_of_place.time_us) for p in points]
    two = [(p.size_bytes, max(p.in_place.time_us, 1e-3)) for p in points]
    values = [math.log10(v) for _, v in one + two] or [0.0, 1.0]
    low, high = min(values), max(max(values), min(values) + 0.1)
    axes = _axes(frame, [x for x, _ in one], low, high, log=True)
    decades = [10.0**e for e in range(math.ceil(low), math.floor(high) + 1)]
    ticks = [(v, duration(v)) for v in decades]
    return _picture(f"{name}: time of one operation", axes, ticks, one, two, [], duration, inline)


def write_svg(verdict: Verdict, path: Path) -> None:
    """Write the curve of the headline collective to PATH. Raises OSError; NoCurveError without a table."""
    if not verdict.collectives:
        raise NoCurveError("the log has no table, so there is no curve")
    name, result = next(iter(verdict.collectives.items()))
    path.write_text(curve_svg(name, result) + "\n", encoding="utf-8")


def _axes(frame: Frame, sizes: Sequence[int], bottom: float, top: float, *, log: bool = False) -> Axes:
    xs = [math.log2(x) for x in sizes] or [0.0, 1.0]
    return Axes(frame, min(xs), max(xs), bottom, top, log)


def _picture(
    title: str, axes: Axes, ticks: list[tuple[float, str]], one: Points, two: Points,
    lines: list[Limit], unit: Callable[[float], str], inline: bool, below: Sequence[str] = (),
) -> str:  # fmt: skip
    frame = axes.frame
    out = head(title, axes, ticks, inline=inline)
    out += _x_axis(axes, [x for x, _ in one])
    out += _limits(axes, lines)
    if one:
        out += [*below, *_curves(axes, one, two, unit)]
    else:
        out.append(
            f'<text class="quiet" x="{frame.left + 20}" y="{frame.height // 2}">no rows in this log</text>'
        )
    out.append("</svg>")
    return "\n".join(out)


def head(
    title: str, axes: Axes, ticks: Sequence[tuple[float, str]], *, inline: bool = False, place: str = ""
) -> list[str]:
    """The beginning of a plot: its styles, title and the ticks of the y axis. `</svg>` ends it.

    PLACE: attributes with its position inside another plot.
    """
    frame = axes.frame
    box = f'viewBox="0 0 {frame.width} {frame.height}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} {place}role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}{'' if inline else DARK}</style>",
        # a separate plot may be on a page of any colour
        "" if inline else '<rect width="100%" height="100%" style="fill:var(--paper,#ffffff)"/>',
        f'<text class="ink name" x="{8 if frame.legend else frame.left}" y="18">{escape(title)}</text>',
    ]
    for value, label in ticks:
        y = axes.y(value)
        out.append(f'<line class="grid" x1="{frame.left}" x2="{frame.end}" y1="{y:.1f}" y2="{y:.1f}"/>')
        where = f'x="{frame.left - 8}" y="{y + 4:.1f}" text-anchor="end"'
        out.append(f'<text class="quiet" {where}>{escape(label)}</text>')
    return out


def _x_axis(axes: Axes, sizes: list[int]) -> list[str]:
    frame = axes.frame
    base = frame.base
    out = [f'<line class="axis" x1="{frame.left}" x2="{frame.end}" y1="{base}" y2="{base}"/>']
    last = math.inf
    for value in sorted(set(sizes), reverse=True):
        x = axes.x(value)
        if last - x < SIZE_GAP:
            continue
        last = x
        # the label of the largest size ends at the edge of a narrow plot
        at_edge = frame.legend and frame.end - x < SIZE_GAP / 2
        where = f'x="{frame.end if at_edge else x:.1f}" text-anchor="{"end" if at_edge else "middle"}"'
        out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>')
        out.append(f'<text class="quiet" {where} y="{base + 18}">{escape(size(value))}</text>')
    middle = (frame.left + frame.end) / 2
    out.append(
        f'<text class="quiet" x="{middle}" y="{frame.height - 8}" text-anchor="middle">message size</text>'
    )
    return out


def _limits(axes: Axes, lines: list[Limit]) -> list[str]:
    """Lines from the highest to the lowest; one above the plot has its label only."""
    frame = axes.frame
    out = []
    places = spread([axes.y(line.value) + 4 for line in lines], LABEL_GAP, frame.base - 4.0)
    for i, (line, beside) in enumerate(zip(lines, places, strict=True)):
        y, above = axes.y(line.value), line.value > axes.top
        start = min(axes.x(line.from_bytes), frame.end - SHORTEST)
        kind, ink = ("limit", "badink") if line.name == "floor" else ("cap", "quiet")
        if not above:
            out.append(f'<line class="{kind}" x1="{start:.1f}" x2="{frame.end}" y1="{y:.1f}" y2="{y:.1f}"/>')
        where = f'x="{8 + 130 * i}" y="58"' if frame.legend else f'x="{frame.end + 8}" y="{beside:.1f}"'
        label = f"{line.label}{' (above)' if above else ''}"
        out.append(f'<text class="{ink}" {where}>{escape(label)}</text>')
    return out


def _band(axes: Axes, runs: Mapping[int, Sequence[float]]) -> list[str]:
    """The area from the lowest to the highest value of each size; nothing without runs."""
    ends = [(bytes_, max(values)) for bytes_, values in runs.items()]
    ends += [(bytes_, min(values)) for bytes_, values in reversed([*runs.items()])]
    points = " ".join(f"{axes.x(bytes_):.1f},{axes.y(value):.1f}" for bytes_, value in ends)
    return [f'<polygon class="onedot" fill-opacity="0.2" points="{points}"/>'] if runs else []


def _curves(axes: Axes, one: Points, two: Points, unit: Callable[[float], str]) -> list[str]:
    frame = axes.frame
    out = []
    for kind, points, name in (("two", two, "in place"), ("one", one, "out of place")):
        path = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
        out.append(f'<polyline class="{kind}" points="{path}"/>')
        for x, y in points:
            text = escape(f"{size(x)}, {name}: {unit(y)}")
            radius = 4 if (x, y) == points[-1] else 2.5
            out.append(
                f'<circle class="{kind}dot" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="{radius}">'
                f"<title>{text}</title></circle>"
            )
    left, y = (8, 34) if frame.legend else (frame.end - 210, 14)
    for i, (kind, name) in enumerate((("one", "out of place"), ("two", "in place"))):
        x = left + i * 120
        out.append(f'<line class="{kind}" x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}"/>')
        out.append(f'<text class="quiet" x="{x + 30}" y="{y + 4}">{name}</text>')
    return out
