"""Curves as SVG: bandwidth or time against the message size, log2 x axis. No script, no font, no link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from busbar.nccl.units import duration, gbps, short, size
from busbar.nccl.verdict import CollectiveResult, Verdict

WIDTH, HEIGHT = 860, 330
LEFT, RIGHT, TOP, BOTTOM = 62, 128, 34, 46
LABEL_GAP = 15.0

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
--two:#ffa35c;--bad:#ff8a80;background:#14171a}}
"""


class NoCurveError(ValueError):
    """The log has no table, so there is no curve."""


@dataclass(frozen=True, slots=True)
class Line:
    """A horizontal line with its label at the right."""

    value: float
    label: str
    kind: str  # "limit" or "cap"


@dataclass(frozen=True, slots=True)
class Axes:
    """From sizes and values to positions; y is linear or, with `log`, decades."""

    low: float
    high: float
    bottom: float
    top: float
    log: bool = False

    def x(self, bytes_: float) -> float:
        """Position of a size."""
        span = self.high - self.low or 1.0
        return LEFT + (math.log2(bytes_) - self.low) / span * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Position of a value."""
        if self.log:
            value = math.log10(max(value, 10**self.bottom))
        share = (value - self.bottom) / (self.top - self.bottom or 1.0)
        return HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)


def curve_svg(name: str, result: CollectiveResult, *, inline: bool = False) -> str:
    """Busbw of both halves with floor and ceiling. INLINE: colours come from the page's variables."""
    points = [p for p in result.curve if p.size_bytes > 0]
    lines = [
        Line(value, f"{label} {short(value)}", kind)
        for value, label, kind in (
            (result.ceiling_gbps, "ceiling", "cap"),
            (result.expected_gbps, "expected", "cap"),
            (result.floor_gbps, "floor", "limit"),
        )
        if value is not None
    ]
    if result.expected_gbps is not None and result.expected_gbps == result.ceiling_gbps:
        lines = [line for line in lines if not line.label.startswith("expected")]
    highest = max([p.out_of_place.busbw_gbps for p in points] + [line.value for line in lines] + [1e-9])
    one = [(p.size_bytes, p.out_of_place.busbw_gbps) for p in points]
    two = [(p.size_bytes, p.in_place.busbw_gbps) for p in points]
    top = _nice(highest * 1.02)
    axes = _axes(points_x=[x for x, _ in one], bottom=0.0, top=top, log=False)
    ticks = [(v, f"{v:g}") for v in _steps(top)]
    return _picture(f"{name}: bus bandwidth, GB/s", axes, ticks, one, two, lines, gbps, inline)


def time_svg(name: str, result: CollectiveResult, *, inline: bool = False) -> str:
    """Time of both halves, log-log."""
    points = [p for p in result.curve if p.size_bytes > 0 and p.out_of_place.time_us > 0]
    one = [(p.size_bytes, p.out_of_place.time_us) for p in points]
    two = [(p.size_bytes, max(p.in_place.time_us, 1e-3)) for p in points]
    values = [v for _, v in one + two] or [1.0]
    bottom, top = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    axes = _axes([x for x, _ in one], float(bottom), float(max(top, bottom + 1)), log=True)
    ticks = [(10.0**e, duration(10.0**e)) for e in range(bottom, max(top, bottom + 1) + 1)]
    return _picture(f"{name}: time of one operation", axes, ticks, one, two, [], duration, inline)


def headline_svg(verdict: Verdict, *, inline: bool = False) -> str:
    """The curve of the headline collective. Raises NoCurveError without a table."""
    if not verdict.collectives:
        raise NoCurveError("the log has no table, so there is no curve")
    name, result = next(iter(verdict.collectives.items()))
    return curve_svg(name, result, inline=inline)


def write_svg(verdict: Verdict, path: Path) -> None:
    """Write the curve of the headline collective to PATH. Raises OSError; NoCurveError without a table."""
    path.write_text(headline_svg(verdict) + "\n", encoding="utf-8")


def _axes(points_x: Sequence[int], bottom: float, top: float, *, log: bool) -> Axes:
    xs = [math.log2(x) for x in points_x] or [0.0, 1.0]
    return Axes(min(xs), max(xs), bottom, top, log)


def _nice(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((m * power for m in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if m * power >= value), 10 * power)


def _steps(top: float) -> list[float]:
    count = next((n for n in (4, 5, 3) if (top / n) == round(top / n, 2)), 4)
    return [top * i / count for i in range(count + 1)]


def _picture(
    title: str, axes: Axes, ticks: list[tuple[float, str]], one: list[tuple[int, float]],
    two: list[tuple[int, float]], lines: list[Line], unit: object, inline: bool,
) -> str:  # fmt: skip
    right = WIDTH - RIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<style>{STYLE}{'' if inline else DARK}</style>",
        f'<text class="ink name" x="{LEFT}" y="18">{escape(title)}</text>',
    ]
    for value, label in ticks:
        y = axes.y(value)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(
            f'<text class="quiet" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        )
    out += _x_axis(axes, [x for x, _ in one])
    out += _limits(axes, lines, right)
    if one:
        out += _curves(axes, one, two, unit, right)
    else:
        out.append(f'<text class="quiet" x="{LEFT + 20}" y="{HEIGHT // 2}">no rows in this log</text>')
    out.append("</svg>")
    return "\n".join(out)


def _x_axis(axes: Axes, sizes: list[int]) -> list[str]:
    base = HEIGHT - BOTTOM
    out = [f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>']
    step = max(1, math.ceil(len(sizes) / 9))
    for i, value in enumerate(reversed(sizes)):
        if i % step:
            continue
        x = axes.x(value)
        out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>')
        label = escape(size(value))
        out.append(f'<text class="quiet" x="{x:.1f}" y="{base + 18}" text-anchor="middle">{label}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text class="quiet" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">message size</text>')
    return out


def _limits(axes: Axes, lines: list[Line], right: int) -> list[str]:
    out = []
    below = -math.inf
    for line in sorted(lines, key=lambda item: -item.value):
        y = axes.y(line.value)
        text_y = max(y + 4, below + LABEL_GAP)
        below = text_y
        ink = "badink" if line.kind == "limit" else "quiet"
        out.append(f'<line class="{line.kind}" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text class="{ink}" x="{right + 8}" y="{text_y:.1f}">{escape(line.label)}</text>')
    return out


def _curves(
    axes: Axes, one: list[tuple[int, float]], two: list[tuple[int, float]], unit: object, right: int
) -> list[str]:
    out = []
    for kind, points, name in (("two", two, "in place"), ("one", one, "out of place")):
        path = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
        out.append(f'<polyline class="{kind}" points="{path}"/>')
        for x, y in points:
            text = escape(f"{size(x)}, {name}: {unit(y) if callable(unit) else y}")
            radius = 4 if (x, y) == points[-1] else 2.5
            out.append(
                f'<circle class="{kind}dot" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="{radius}">'
                f"<title>{text}</title></circle>"
            )
    for i, (kind, name) in enumerate((("one", "out of place"), ("two", "in place"))):
        x = right - 210 + i * 120
        out.append(f'<line class="{kind}" x1="{x}" x2="{x + 24}" y1="14" y2="14"/>')
        out.append(f'<text class="quiet" x="{x + 30}" y="18">{name}</text>')
    return out
