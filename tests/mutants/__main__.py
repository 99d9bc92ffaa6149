"""Mutation testing: the share of small faults in the source that the tests notice.

    make mutants [SAMPLE=60] [AREA=checks] [ONLY=busbar/config/types.py:41] [SEED=1] [GOAL=95] [JOBS=1]

A mutant is caught when a test of its area fails, or when they do not end. The areas, their tests and the
operators are in pyproject.toml, [tool.mutants]; an area with `named` is tried only by its name. Mutants that
no test can catch are in not_counted.toml, each with its reason. Everything runs in copies of the checkout.

Why not a whole tool: Cosmic Ray's session changes files in place, and it knows Python only; mutmut 3 leaves
out constants and every function or class with a decorator, so all dataclasses and pydantic models.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from seeds import AREAS, Mutant, mutants, stale_entries
from trial import Outcome, attempt, baseline, copy_of_checkout

COLUMNS = ("mutants", "caught", "timed out", "survived")


def measure(area: str, size: int, options: argparse.Namespace, copies: queue.Queue[Path]) -> Counter[str]:
    """How many of SIZE mutants that count there were, by COLUMNS; prints every survivor."""
    counted = (mutant for mutant in mutants(area, options.seed, options.only) if mutant.counted)
    sample = list(islice(counted, size))
    counts = Counter({"mutants": len(sample)})
    if not sample:
        return counts
    copies.put(copy := copies.get())
    seconds = baseline(copy, area)
    print(f"{area}: {len(sample)} mutants; its tests take {seconds:.0f} s of CPU time", flush=True)

    def tried(mutant: Mutant) -> Outcome:
        copy = copies.get()
        try:
            return attempt(copy, area, mutant, seconds)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(copies.qsize()) as pool:
        for mutant, outcome in zip(sample, pool.map(tried, sample), strict=True):
            counts[outcome] += 1
            if outcome != "caught":
                print(f"{outcome}: {mutant.file}:{mutant.line}\n{mutant.diff}", flush=True)
    return counts


def main() -> int:
    """Exit code: 0 the goal is reached, 1 it is not, 2 nothing could be measured."""
    areas = list(AREAS)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=60, help="mutants, over all areas (default 60)")
    parser.add_argument("--area", choices=["", *areas], default="", help="only this area")
    parser.add_argument("--only", default="", metavar="FILE[:LINE]", help="only mutants of this file or line")
    parser.add_argument("--seed", type=int, default=1, help="another seed draws another sample (default 1)")
    parser.add_argument("--goal", type=float, default=95, help="percent that must be caught (default 95)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="mutants tried at a time, a core each (default 1)"
    )
    options = parser.parse_args()
    chosen = [options.area] if options.area else [a for a in areas if not AREAS[a].get("named")]
    if stale := stale_entries():
        print("\n".join(stale), file=sys.stderr)
        return 2
    results: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="busbar-mutants-") as folder:
        copies: queue.Queue[Path] = queue.Queue()
        for _ in range(options.jobs):
            copies.put(copy_of_checkout(folder))
        for number, area in enumerate(chosen):
            size = options.sample // len(chosen) + (number < options.sample % len(chosen))
            results[area] = measure(area, size, options, copies)
    total = sum(results.values(), Counter[str]())
    tried, caught = total["mutants"], total["caught"] + total["timed out"]
    if not tried:
        print("No mutants to try. Fix: check AREA, ONLY and SAMPLE.", file=sys.stderr)
        return 2
    print(f"\n{'area':12}" + "".join(f"{column:>13}" for column in COLUMNS))
    for area, counts in {**results, "all": total}.items():
        print(f"{area:12}" + "".join(f"{counts[column]:13}" for column in COLUMNS))
    share = 100 * caught / tried
    print(f"\n{share:.1f} % of the mutants were caught; the goal is {options.goal:g} %.")
    return 0 if share >= options.goal else 1


if __name__ == "__main__":
    sys.exit(main())
