"""Prints all published results beside what busbar expects of the system that was measured.

python bench/nccl_references.py
"""

from __future__ import annotations

from busbar.judge.nccl.expected.bounds import bounds
from busbar.judge.nccl.expected.published import PublishedResult, published_results
from busbar.judge.nccl.units import rate


def line(result: PublishedResult) -> str:
    """A row of the table, in Markdown."""
    found = bounds(result.system(), result.collective, result.algorithm)
    off = f"{result.busbw / found.expected - 1:+.1%}" if found.expected else "-"
    system = f"{result.gpu} {result.rails}x{result.rate_gbps:g}"
    cells = (
        system, str(result.nodes), result.collective, result.algorithm, rate(result.busbw),
        rate(found.expected), rate(found.floor), off, result.nccl, result.date, result.health,
        result.reason if abs(result.busbw - (found.expected or 0)) > 0.1 * (found.expected or 0) else "",
        result.source,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


COLUMNS = (
    "system", "N", "collective", "algorithm", "busbw", "expected", "floor", "off", "NCCL", "date", "health",
    "reason", "source",
)  # fmt: skip

if __name__ == "__main__":
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for each in published_results():
        print(line(each))
