"""Curves of a collective and of the history: as SVG for light and dark pages, and for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from pathlib import Path

from busbar.judge.nccl.units import duration, gbps, short, size
from busbar.judge.nccl.verdict import CollectiveResult, Verdict


@dataclass(frozen=True, slots=True)
class Frame:
    """Sizes in px of the view box. `legend`: labels of lines are above the plot, not right of it."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    legend: bool

    @property
    def end(self) -> int:
        """x of the right end of the plot."""
        return self.width - self.right

    @property
    def base(self) -> int:
        """y of the x axis."""
        return self.height - self.bottom


WIDE = Frame(860, 330, 62, 128, 34, 46, legend=False)
NARROW = Frame(400, 320, 48, 12, 72, 44, legend=True)


@dataclass(frozen=True, slots=True)
class Axes:
    """Maps sizes and values to positions: x is log2 from `low` to `high`, y linear or, with `log`, log10."""

    frame: Frame
    low: float
    high: float
    bottom: float
    top: float
    log: bool = False

    def x(self, bytes_: float) -> float:
        """Position of a size."""
        return self.at(math.log2(bytes_))

    def at(self, value: float) -> float:
        """Position of a value between `low` and `high`."""
        span = self.high - self.low or 1.0
        return self.frame.left + (value - self.low) / span * (self.frame.end - self.frame.left)

    def y(self, value: float) -> float:
        """Position of a value."""
        if self.log:
            value = math.log10(max(value, 10**self.bottom))
        share = (value - self.bottom) / (self.top - self.bottom or 1.0)
        return self.frame.base - min(max(share, 0.0), 1.0) * (self.frame.base - self.frame.top)


def steps(top: float, most: int = 6) -> list[float]:
    """0 and multiples of a round step (1, 2, 2.5, 5 times a power of ten) up to TOP, at most MOST of them."""
    power = 10.0 ** math.floor(math.log10(top / most))
    step = next(m * power for m in (1, 2, 2.5, 5, 10, 20) if top / (m * power) <= most)
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


def spread(wanted: list[float], gap: float, lowest: float) -> list[float]:
    """Positions of labels near WANTED (ascending), at least GAP apart and none below LOWEST."""
    placed: list[float] = []
    for position in wanted:
        placed.append(max(position, placed[-1] + gap) if placed else position)
    limit = lowest
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - gap
    return placed


# A ceiling further above the curve than this factor only has a label and does not extend the plot.
SCALE_LIMIT = 1.25
MARGIN = 1.04


@dataclass(frozen=True, slots=True)
class Limit:
    """A value in GB/s that holds from a message size (bytes) on."""

    value: float
    name: str
    from_bytes: int

    @property
    def label(self) -> str:
        """The label of the line, such as `floor 360`."""
        return f"{self.name} {short(self.value)}"


def limits(result: CollectiveResult) -> list[Limit]:
    """The limits of RESULT that apply to sizes of its curve, from the highest to the lowest."""
    sizes = [p.size_bytes for p in result.curve if p.size_bytes > 0]
    if not sizes:
        return []
    # a configured value has no plateau: it is compared with the largest message alone
    start = result.plateau_bytes or max(sizes)
    found = []
    if result.ceiling_gbps is not None:
        found.append(Limit(result.ceiling_gbps, "ceiling", min(sizes)))
    if start <= max(sizes):
        if result.expected_gbps is not None and result.expected_gbps != result.ceiling_gbps:
            found.append(Limit(result.expected_gbps, "expected", start))
        if result.floor_gbps is not None:
            found.append(Limit(result.floor_gbps, "floor", start))
    return sorted(found, key=lambda limit: -limit.value)


def height(result: CollectiveResult, found: list[Limit]) -> float:
    """The value at the top of the plot: a little above the curve and the limits near it."""
    values = [m.busbw_gbps for p in result.curve for m in (p.out_of_place, p.in_place)]
    values += [limit.value for limit in found if limit.name != "ceiling"]
    highest = max(values, default=0.0)
    near = [limit.value for limit in found if limit.value <= SCALE_LIMIT * highest]
    return max([highest, *near]) * MARGIN or 1.0


# dot of (column 0..1, row 0..3 from the top) in a Braille cell, Unicode chapter 21.1
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
LABEL = 8
HEIGHT = 12


def curve_plot(result: CollectiveResult, width: int) -> str:
    """RESULT's curve in WIDTH columns and HEIGHT lines, with labels of both axes; '' without two sizes."""
    points = [
        (math.log2(p.size_bytes), min(p.out_of_place.busbw_gbps, p.in_place.busbw_gbps))
        for p in result.curve
        if p.size_bytes > 0
    ]
    if len(points) < 2:
        return ""
    lines = [line for line in limits(result) if line.name != "expected"]
    top = height(result, lines)
    drawn = [line for line in lines if line.value <= top]
    columns = max(20, width - LABEL)
    canvas = [[0] * columns for _ in range(HEIGHT)]
    left, right = points[0][0], points[-1][0]

    def dot(x: float, y: float) -> None:
        px = round((x - left) / (right - left or 1) * (columns * 2 - 1))
        py = round((1 - min(y, top) / top) * (HEIGHT * 4 - 1))
        canvas[py // 4][px // 2] |= DOTS[px % 2][py % 4]

    for (x1, y1), (x2, y2) in pairwise(points):
        steps = max(2, round((x2 - x1) / (right - left or 1) * columns * 4))
        for i in range(steps + 1):
            dot(x1 + (x2 - x1) * i / steps, y1 + (y2 - y1) * i / steps)
    for line in drawn:
        # a limit of one size only is three dots long
        start = min(math.log2(line.from_bytes), right - (right - left) * 12 / (columns * 2 - 1))
        for i in range(0, columns * 2, 4):
            x = left + (right - left) * i / (columns * 2 - 1)
            if x >= start:
                dot(x, line.value)
    values = (top, 0.0, *(line.value for line in drawn))
    labels = {round((1 - v / top) * (HEIGHT * 4 - 1)) // 4: short(v) for v in values}
    rows = [
        f"{labels.get(i, ''):>{LABEL - 1}} " + "".join(chr(0x2800 + c) for c in row)
        for i, row in enumerate(canvas)
    ]
    first, last = size(round(2**left)), size(round(2**right))
    rows.append(" " * LABEL + first + last.rjust(columns - len(first)))
    named = [f"{line.label}{'' if line in drawn else ' (above)'}" for line in reversed(lines)]
    rows.append(" " * LABEL + "busbw in GB/s; dotted: " + (", ".join(named) or "nothing to expect"))
    return "\n".join(rows)


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


HISTORY_LABEL_GAP = 110.0  # px between labels of the time axis
MOST_TICKS = 20  # of the bandwidth, from 0


@dataclass(frozen=True)
class Dot:
    """A run. `at`: with a time zone. `normal`, `floor`: in GB/s, if known. `is_bad`: drawn as a bad run.

    `text`: its description. `changed`: marks the time at which something changed.
    """

    at: datetime
    busbw: float
    is_bad: bool
    text: str
    normal: float | None = None
    floor: float | None = None
    changed: bool = False


def series_svg(series: Mapping[str, Sequence[Dot]]) -> str:
    """Plots of all series by their title, one below the other; each has at least one dot, in order."""
    pictures = [_history_picture(title, dots, i) for i, (title, dots) in enumerate(series.items())]
    size = f'viewBox="0 0 {WIDE.width} {WIDE.height * len(pictures)}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', *pictures, "</svg>\n"])


def _history_picture(title: str, dots: Sequence[Dot], number: int) -> str:
    times = [dot.at.timestamp() for dot in dots]
    values = [value for dot in dots for value in (dot.busbw, dot.normal, dot.floor) if value is not None]
    top, bottom = max(values) * 1.1 or 1.0, max(min(values) * 0.8, 0.0)
    axes = Axes(WIDE, times[0], times[-1], bottom, top)
    # On an axis from 0, a value that warns would look like a normal one.
    ticks = [(value, f"{value:g}") for value in steps(top, MOST_TICKS) if value >= bottom]
    place = f'y="{number * WIDE.height}" width="{WIDE.width}" height="{WIDE.height}" '
    out = head(f"{title}: bus bandwidth, GB/s", axes, ticks, place=place)
    out += _time_axis(axes, times)
    out += _changes(axes, dots)
    for kind, name in (("cap", "normal"), ("limit", "floor")):
        points = [(dot.at.timestamp(), getattr(dot, name)) for dot in dots]
        path = " ".join(f"{axes.at(x):.1f},{axes.y(y):.1f}" for x, y in points if y is not None)
        out.append(f'<polyline class="{kind}" fill="none" points="{path}"/>' if path else "")
    out += [_dot(axes, dot) for dot in dots]
    out += _legend(axes)
    return "\n".join(filter(None, [*out, "</svg>"]))


def _time_axis(axes: Axes, times: Sequence[float]) -> list[str]:
    frame, base = axes.frame, axes.frame.base
    out = [f'<line class="axis" x1="{frame.left}" x2="{frame.end}" y1="{base}" y2="{base}"/>']
    last = float("-inf")
    for time in times:
        x = axes.at(time)
        if x - last < HISTORY_LABEL_GAP:
            continue
        last = x
        label = f"{datetime.fromtimestamp(time, UTC):%m-%d %H:%M}"
        out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>')
        out.append(f'<text class="quiet" x="{x:.1f}" y="{base + 18}" text-anchor="middle">{label}</text>')
    where = f'x="{(frame.left + frame.end) / 2}" y="{frame.height - 8}" text-anchor="middle"'
    return [*out, f'<text class="quiet" {where}>{_years(times)} (UTC)</text>']


def _years(times: Sequence[float]) -> str:
    first, last = (str(datetime.fromtimestamp(time, UTC).year) for time in (times[0], times[-1]))
    return first if first == last else f"{first} to {last}"


def _changes(axes: Axes, dots: Sequence[Dot]) -> list[str]:
    frame = axes.frame
    places = (axes.at(dot.at.timestamp()) for dot in dots if dot.changed)
    return [
        f'<line class="cap" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.top}" y2="{frame.base}"/>' for x in places
    ]


def _dot(axes: Axes, dot: Dot) -> str:
    style = ' style="fill:var(--bad,#b3261e)"' if dot.is_bad else ""
    where = (
        f'cx="{axes.at(dot.at.timestamp()):.1f}" cy="{axes.y(dot.busbw):.1f}" r="{4 if dot.is_bad else 3}"'
    )
    text = escape(f"{dot.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC: {gbps(dot.busbw)}. {dot.text}")
    return f'<circle class="onedot" {where}{style}><title>{text}</title></circle>'


def _legend(axes: Axes) -> list[str]:
    x, top = axes.frame.end + 8, axes.frame.top
    rows = (("ink", "dots: runs"), ("badink", "red: low or failed"), ("quiet", "grey: median of passes"))
    more = (("badink", "red line: warning"), ("quiet", "upright: a change"))
    return [
        f'<text class="{kind}" x="{x}" y="{top + 16 * i + 10}" style="font-size:10px">{text}</text>'
        for i, (kind, text) in enumerate((*rows, *more))
    ]
