"""Lines of a plot: ceiling, expected value and floor, each over the sizes where it applies."""

from __future__ import annotations

from dataclasses import dataclass

from busbar.judge.nccl.units import short
from busbar.judge.nccl.verdict import CollectiveResult

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
