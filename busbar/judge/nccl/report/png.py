"""The curve as PNG: the SVG, drawn by resvg with a font that comes along, the same on every machine."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from busbar.judge.nccl.report.frame import WIDE
from busbar.judge.nccl.report.svg import headline_svg
from busbar.judge.nccl.verdict import Verdict

SCALE = 2  # sharp on dense screens and on paper
FONT = "DejaVu Sans"
PAPER = "#ffffff"
FIX = "PNG needs resvg, which is not installed. Fix: pip install 'resvg-py<1', or use --svg or --html"
# `var(--ink,#1b1f24)` -> its value for light paper; resvg knows no variables
VARIABLE = re.compile(r"var\(--[a-z]+,(#[0-9a-f]{6})\)")


class RendererMissingError(RuntimeError):
    """The optional library that draws PNG is not installed; the text says how to get it."""


def png(verdict: Verdict) -> bytes:
    """The curve of VERDICT's headline collective, on white. Raises NoCurveError where the log has no
    table, RendererMissingError without the extra `png`.
    """
    try:
        import resvg_py
    except ImportError as error:
        raise RendererMissingError(FIX) from error
    picture = VARIABLE.sub(r"\1", headline_svg(verdict, inline=True))
    font = resources.files("busbar.judge.nccl.report").joinpath("fonts", "DejaVuSans-ascii.ttf")
    with resources.as_file(font) as path:
        return bytes(
            resvg_py.svg_to_bytes(
                svg_string=picture, width=WIDE.width * SCALE, background=PAPER, font_family=FONT,
                sans_serif_family=FONT, font_files=[str(path)], skip_system_fonts=True,
            )
        )  # fmt: skip


def write_png(verdict: Verdict, path: Path) -> None:
    """Write the curve to PATH. Raises OSError, and what `png` raises."""
    path.write_bytes(png(verdict))
