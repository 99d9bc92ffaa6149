"""The frame of a curve: size and positions in it; wide for screens and paper, narrow for phones."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
