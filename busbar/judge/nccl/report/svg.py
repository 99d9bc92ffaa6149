"""Curves of a collective and of a history, as SVG for light and dark pages (chart.svg.j2)."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, Template

from busbar.judge.nccl.units import gbps, short, size
from busbar.judge.nccl.verdict import CollectiveResult, Verdict

# px of the plot in chart.svg.j2
LEFT, RIGHT, TOP, BASE = 62.0, 732.0, 34.0, 284.0
LABEL_GAP = 15.0
SHORTEST = 36.0  # px of a limit that applies to one size only
# A ceiling further above the curve than this factor only has a label and does not extend the plot.
SCALE_LIMIT = 1.25
MARGIN = 1.04
MOST_TICKS = 20  # of the bandwidth of a history, from 0
_KIND = 5  # characters by which pages and pictures are known: <!doc, <svg


class NoCurveError(ValueError):
    """The log has no table, so there is no curve."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps the values from `low` to `high` to px from `start` to `end`; others go to the nearer end."""

    low: float
    high: float
    start: float
    end: float

    def px(self, value: float) -> float:
        """The place of VALUE."""
        share = (value - self.low) / (self.high - self.low or 1.0)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)


@dataclass(slots=True)
class Chart:
    """A plot: its scales, and what is drawn in it, by class of the style sheet."""

    title: str
    x_name: str
    x: Scale
    y: Scale
    x_ticks: list[tuple[float, str]] = field(default_factory=list)
    y_ticks: list[tuple[float, str]] = field(default_factory=list)
    areas: list[tuple[str, str]] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    dots: list[tuple[str, float, float, str]] = field(default_factory=list)
    labels: list[tuple[str, float, str]] = field(default_factory=list)

    def points(self, places: Iterable[tuple[float, float]]) -> str:
        """PLACES as the points of a line."""
        return " ".join(f"{self.x.px(x)},{self.y.px(y)}" for x, y in places)

    def add_x_ticks(self, ticks: Iterable[tuple[float, str]], gap: float) -> None:
        """Add the last of TICKS, and those before it that are at least GAP px apart."""
        for value, label in sorted(ticks, reverse=True):
            if not self.x_ticks or self.x_ticks[-1][0] - self.x.px(value) >= gap:
                self.x_ticks.append((self.x.px(value), label))


class Limit(NamedTuple):
    """A value in GB/s that holds from a message size (bytes) on."""

    value: float
    name: str
    from_bytes: int


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


def curve_svg(
    name: str, result: CollectiveResult, *, inline: bool = False,
    runs: Mapping[int, Sequence[float]] | None = None,
) -> str:  # fmt: skip
    """Busbw of both halves with the limits. INLINE: colours come from the page's variables.

    RUNS: message size -> out-of-place busbw of several runs in GB/s, drawn as a band from lowest to highest.
    """
    rows = [p for p in result.curve if p.size_bytes > 0]
    band = {math.log2(at): values for at, values in sorted((runs or {}).items()) if at > 0 and values}
    sizes = [math.log2(p.size_bytes) for p in rows] or [0.0]
    found = limits(result)
    top = max([_height(result, found), *map(max, band.values())])
    x, y = Scale(min(sizes), max(sizes), LEFT, RIGHT), Scale(0.0, top, BASE, TOP)
    chart = Chart(f"{name}: bus bandwidth, GB/s", "message size", x, y)
    chart.y_ticks = [(y.px(value), f"{value:g}") for value in steps(top)]
    chart.add_x_ticks({math.log2(p.size_bytes): size(p.size_bytes) for p in rows}.items(), 60.0)
    if band:
        ends = [(at, max(values)) for at, values in band.items()]
        ends += [(at, min(values)) for at, values in reversed(band.items())]
        chart.areas.append(("band", chart.points(ends)))
    places = spread([y.px(limit.value) + 4 for limit in found], LABEL_GAP, BASE - 4.0)
    for limit, place in zip(found, places, strict=True):
        is_above, is_floor = limit.value > top, limit.name == "floor"
        if not is_above:
            start, at = min(x.px(math.log2(limit.from_bytes)), RIGHT - SHORTEST), y.px(limit.value)
            chart.lines.append(("limit" if is_floor else "cap", f"{start},{at} {RIGHT},{at}"))
        text = f"{limit.name} {short(limit.value)}{' (above)' if is_above else ''}"
        chart.labels.append(("badink" if is_floor else "quiet", place, text))
    for kind, half in (("two", "in place"), ("one", "out of place")):
        values = [p.in_place.busbw_gbps if kind == "two" else p.out_of_place.busbw_gbps for p in rows]
        chart.lines.append((kind, chart.points(zip(sizes, values, strict=False))))
        for row, at, value in zip(rows, sizes, values, strict=False):
            text = f"{size(row.size_bytes)}, {half}: {gbps(value)}"
            chart.dots.append((f"{kind}dot", x.px(at), y.px(value), text))
    chart.labels += [("onedot", 14.0, "out of place"), ("twodot", 29.0, "in place (dashed)")]
    return _drawn([chart], inline=inline)


def write_svg(verdict: Verdict, path: Path) -> None:
    """Write the curve of the headline collective to PATH. Raises OSError; NoCurveError without a table."""
    if not verdict.collectives:
        raise NoCurveError("the log has no table, so there is no curve")
    name, result = next(iter(verdict.collectives.items()))
    write_report(path, curve_svg(name, result) + "\n")


def write_report(path: Path, text: str) -> None:
    """Write a page or a picture; only one of its kind is overwritten. Raises OSError."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(_KIND) not in (b"", text[:_KIND].encode()):
                what = "it exists and is not such a report. Fix: name another file"
                raise FileExistsError(errno.EEXIST, what)
    path.write_text(text, encoding="utf-8")


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
    return _drawn([_history(title, dots) for title, dots in series.items()], inline=False) + "\n"


def _history(title: str, dots: Sequence[Dot]) -> Chart:
    times = [dot.at.timestamp() for dot in dots]
    values = [value for dot in dots for value in (dot.busbw, dot.normal, dot.floor) if value is not None]
    # On an axis from 0, a value that warns would look like a normal one.
    top, bottom = max(values) * 1.1 or 1.0, max(min(values) * 0.8, 0.0)
    x, y = Scale(times[0], times[-1], LEFT, RIGHT), Scale(bottom, top, BASE, TOP)
    years = " to ".join(dict.fromkeys(f"{dot.at.astimezone(UTC):%Y}" for dot in (dots[0], dots[-1])))
    chart = Chart(f"{title}: bus bandwidth, GB/s", f"{years} (UTC)", x, y)
    chart.y_ticks = [(y.px(value), f"{value:g}") for value in steps(top, MOST_TICKS) if value >= bottom]
    chart.add_x_ticks(((dot.at.timestamp(), f"{dot.at.astimezone(UTC):%m-%d %H:%M}") for dot in dots), 110.0)
    for at, dot in zip(times, dots, strict=True):
        if dot.changed:
            chart.lines.append(("cap", f"{x.px(at)},{TOP} {x.px(at)},{BASE}"))
        text = f"{dot.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC: {gbps(dot.busbw)}. {dot.text}"
        chart.dots.append(("baddot" if dot.is_bad else "onedot", x.px(at), y.px(dot.busbw), text))
    for kind, name in (("cap", "normal"), ("limit", "floor")):
        known = [(at, value) for at, dot in zip(times, dots, strict=True) if (value := getattr(dot, name))]
        chart.lines += [(kind, chart.points(known))] if known else []
    legend = (
        ("ink", "dots: runs"), ("badink", "red: low or failed"), ("quiet", "grey: median"),
        ("badink", "red line: warning"), ("quiet", "upright: a change"),
    )  # fmt: skip
    chart.labels = [(kind, TOP + 10 + 16 * i, text) for i, (kind, text) in enumerate(legend)]
    return chart


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


def _height(result: CollectiveResult, found: list[Limit]) -> float:
    """The value at the top of the plot: a little above the curve and the limits near it."""
    values = [m.busbw_gbps for p in result.curve for m in (p.out_of_place, p.in_place)]
    values += [limit.value for limit in found if limit.name != "ceiling"]
    highest = max(values, default=0.0)
    near = [limit.value for limit in found if limit.value <= SCALE_LIMIT * highest]
    return max([highest, *near]) * MARGIN or 1.0


@cache
def template(package: str, name: str, **filters: Callable[..., str]) -> Template:
    """The template of a page or a picture in a package."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(filters)
    return environment.from_string(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def _drawn(charts: list[Chart], *, inline: bool) -> str:
    return template("busbar.judge.nccl.report", "chart.svg.j2").render(charts=charts, inline=inline)
