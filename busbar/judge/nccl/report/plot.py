"""A curve as text: busbw against log2 of the size, floor and ceiling as lines; Braille, 2 x 4 dots a cell."""

from __future__ import annotations

import math
from itertools import pairwise

from busbar.judge.nccl.report.limits import height, limits
from busbar.judge.nccl.units import short, size
from busbar.judge.nccl.verdict import CollectiveResult

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
