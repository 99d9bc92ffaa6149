"""The report: one HTML file without script, font or link, for screen (light and dark) and paper."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, Template
from markupsafe import Markup

from busbar.nccl.report.svg import curve_svg, time_svg
from busbar.nccl.units import duration, gbps, rate, share, size
from busbar.nccl.verdict import Verdict

WORDS = {"pass": "Pass", "fail": "Fail", "unknown": "No verdict"}
LEADS = {
    "pass": "Every required check passed.",
    "fail": "At least one check failed.",
    "unknown": "The log does not hold enough evidence for a verdict. This is not a pass.",
}


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(size=size, rate=rate, duration=duration, share=share, gbps=_gbps)
    text = resources.files("busbar.nccl.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text)


def render_html(verdict: Verdict, title: str = "NCCL validation") -> str:
    """VERDICT as a whole HTML page."""
    curves = {n: Markup(curve_svg(n, r, inline=True)) for n, r in verdict.collectives.items()}
    times = {n: Markup(time_svg(n, r, inline=True)) for n, r in verdict.collectives.items()}
    return _template().render(
        v=verdict,
        title=title,
        word=WORDS[verdict.verdict],
        lead=LEADS[verdict.verdict],
        curves=curves,
        times=times,
        states={check.name: check.status for check in verdict.checks},
        limits=_limits(verdict),
    )


def _gbps(value: float | None) -> str:
    return "-" if value is None else gbps(value)


def _limits(verdict: Verdict) -> str:
    floor, ceiling = _gbps(verdict.floor_gbps), _gbps(verdict.ceiling_gbps)
    if floor == "-":
        return "not known"
    return f"from {floor}" if ceiling == "-" else f"{floor.removesuffix(' GB/s')} to {ceiling}"


def write_html(verdict: Verdict, path: Path | str) -> None:
    """Write the report to PATH. Raises OSError."""
    Path(path).write_text(render_html(verdict), encoding="utf-8")
