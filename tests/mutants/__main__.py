"""Mutation testing: the share of small faults in the source that the tests notice.

    make mutants [SAMPLE=60] [AREA=checks] [ONLY=busbar/config/values.py:41] [SEED=1] [GOAL=95] [JOBS=1]

Cosmic Ray's operators make the mutants. A mutant is caught when a test fails, out of those that call the
function that it changes, or when they do not end. The areas, their tests and the operators are in
pyproject.toml, [tool.mutants]. Mutants that no test can catch are in not_counted.toml, each with its reason.
Everything runs in temporary copies of the checkout.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from seeds import AREAS, Mutant, mutants, stale_entries
from trial import attempt, baseline, use_copy

COLUMNS = ("mutants", "caught", "timed out", "survived", "not counted")


def draw(area: str, size: int, options: argparse.Namespace) -> tuple[list[Mutant], int]:
    """The first SIZE mutants that count, and how many were passed over that do not."""
    sample: list[Mutant] = []
    not_counted = 0
    for mutant in mutants(area, options.seed, options.only):
        if len(sample) == size:
            break
        if mutant.counted:
            sample.append(mutant)
        else:
            not_counted += 1
    return sample, not_counted


def measure(area: str, size: int, options: argparse.Namespace, pool: ProcessPoolExecutor) -> Counter[str]:
    """How many mutants there were, by COLUMNS; prints every survivor."""
    sample, not_counted = draw(area, size, options)
    counts = Counter({"mutants": len(sample), "not counted": not_counted})
    if not sample:
        return counts
    known = pool.submit(baseline, area).result()
    seconds = sum(test.cpu_seconds for test in known.tests)
    print(
        f"{area}: {len(sample)} mutants; its {len(known.tests)} test files take {seconds:.0f} s", flush=True
    )
    count = len(sample)
    for mutant, outcome in zip(
        sample, pool.map(attempt, [area] * count, sample, [known] * count), strict=True
    ):
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
    chosen = [options.area] if options.area else areas
    stale = stale_entries()
    if stale:
        print("\n".join(stale), file=sys.stderr)
        return 2
    results: dict[str, Counter[str]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="busbar-mutants-") as folder,
        ProcessPoolExecutor(
            options.jobs, multiprocessing.get_context("fork"), initializer=use_copy, initargs=(folder,)
        ) as pool,
    ):
        for number, area in enumerate(chosen):
            size = options.sample // len(chosen) + (number < options.sample % len(chosen))
            results[area] = measure(area, size, options, pool)
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
