"""Bandwidths over time as SVG: a dot per run, the normal value as a line, in the style of the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from busbar.judge.nccl.report.frame import WIDE, Axes, steps
from busbar.judge.nccl.report.svg import head
from busbar.judge.nccl.units import gbps

LABEL_GAP = 110.0  # px between labels of the time axis
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
    pictures = [_picture(title, dots, i) for i, (title, dots) in enumerate(series.items())]
    size = f'viewBox="0 0 {WIDE.width} {WIDE.height * len(pictures)}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', *pictures, "</svg>\n"])


def _picture(title: str, dots: Sequence[Dot], number: int) -> str:
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
        if x - last < LABEL_GAP:
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
