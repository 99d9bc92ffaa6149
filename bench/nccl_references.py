"""Prints all published results beside what busbar expects of the system that was measured.

The second table judges each result without those of its own source: what an unseen system would be told.

python bench/nccl_references.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from unittest.mock import patch

from busbar.judge.nccl.expected import bounds
from busbar.judge.nccl.expected.bounds import PublishedResult, published_results
from busbar.judge.nccl.units import rate

CLOSE = 0.05
COLUMNS = (
    "system", "N", "collective", "algorithm", "busbw", "expected", "floor", "low", "off", "answer", "NCCL",
    "date", "tuned", "reason", "source",
)  # fmt: skip


def answer(result: PublishedResult, found: bounds.Bounds) -> str:
    """The answer of the gate, and how near the evidence is."""
    if found.floor is None or found.low is None:
        return bounds.NO_SYSTEM
    said = "pass" if result.busbw >= found.floor else "unknown: low" if result.busbw >= found.low else "fail"
    above = found.ceiling is not None and result.busbw > found.ceiling
    return f"{'fail: above the ceiling' if above else said} ({found.evidence})"


def line(result: PublishedResult, found: bounds.Bounds) -> str:
    """A row of a table, in Markdown."""
    off = f"{result.busbw / found.expected - 1:+.1%}" if found.expected else "-"
    tuned = "yes" if result.tuned else "no"
    cells = (
        f"{result.gpu} {result.rails}x{result.rate_gbps:g}", str(result.nodes), result.collective,
        result.algorithm, rate(result.busbw), rate(found.expected), rate(found.floor), rate(found.low), off,
        answer(result, found), result.nccl, result.date, tuned, result.reason,
        result.source,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def table(results: Iterable[PublishedResult], *, without_own_source: bool) -> str:
    """All rows, and a line on how many are close to what is expected, and which fail."""
    rows, counted = [], Counter[str]()
    for result in results:
        known = tuple(
            each for each in published_results() if not without_own_source or each.source != result.source
        )
        bounds._of.cache_clear()
        bounds._told.cache_clear()
        with patch.object(bounds, "published_results", lambda known=known: known):
            found = bounds.bounds(result.system(), result.collective, result.algorithm)
        rows.append(line(result, found))
        of = "tuned" if result.tuned else "not tuned"
        near = found.expected is not None and found.evidence != "none"
        close = found.expected is not None and abs(result.busbw / found.expected - 1) <= CLOSE
        counted[f"{of}, {'expected' if near else 'no system like this'}"] += 1
        counted[f"{of}, within {CLOSE:.0%}"] += near and close
        counted[f"{of}, {answer(result, found).partition(' (')[0]}"] += 1
    head = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
    return "\n".join([head, *rows, "", *(f"{name}: {number}" for name, number in sorted(counted.items()))])


if __name__ == "__main__":
    print(table(published_results(), without_own_source=False), end="\n\n")
    print("Without the results of the own source:\n")
    print(table(published_results(), without_own_source=True))
