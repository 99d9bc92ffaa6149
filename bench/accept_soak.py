"""A soak in numbers: which simulated series are named, and what the samples of many nodes cost.

python bench/accept_soak.py [--soaks 100] [--nodes 440] [--hours 168]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from busbar.zstd import ZstdFile
from stacks.accept.package.subjects import soak
from stacks.accept.package.subjects.soak import DRIFT_PERCENT, LOW_PERCENT, LOWEST_PERCENT

GBPS = 390.0
HOURS, SPREADS, LENGTHS = (1, 12, 72, 168), (0.002, 0.005, 0.01, 0.015, 0.02), (2, 3, 6, 12)


def series(chance: random.Random, count: int, spread: float, low: int = 0) -> list[float]:
    """A soak of so many intervals, of which LOW in a row are 5 % lower."""
    values = [chance.gauss(GBPS, GBPS * spread) for _ in range(count)]
    first = chance.randrange(count - low)
    return [value * (0.95 if first <= n < first + low else 1) for n, value in enumerate(values)]


def named(values: Sequence[float]) -> bool | None:
    """Whether a row of the series fails; None: the spread leaves the wobble unknown."""
    length = soak.low_run(len(values), soak.spread(values), LOW_PERCENT / 100)
    loss, noise = soak.drift(values)
    if noise <= DRIFT_PERCENT / 100 < loss:
        return True
    if not length:
        return None
    is_low = min(values) < GBPS * (1 - LOWEST_PERCENT / 100)
    return soak.wobble(values, length)[0] > LOW_PERCENT / 100 or is_low


def print_series(soaks: int) -> None:
    """False alarms, and wobbles that are found, of 100 soaks."""
    print(f"of 100 soaks ({soaks} simulated): healthy ones named and unknown, and wobbles of 5 % found")
    print("  hours  spread  named  unknown  " + "  ".join(f"{length:>2} low" for length in LENGTHS))
    for hours in HOURS:
        for spread in SPREADS:
            chance, count = random.Random(46), hours * 3600 // soak.INTERVAL_SECONDS
            healthy = [named(series(chance, count, spread)) for _ in range(soaks)]
            found = [
                sum(bool(named(series(chance, count, spread, length))) for _ in range(soaks)) * 100 / soaks
                for length in LENGTHS
                if length < count / 2
            ]
            share = 100 / soaks
            print(
                f"  {hours:>5}  {spread:>6.1%}  {share * healthy.count(True):>5.1f}  "
                f"{share * healthy.count(None):>7.1f}  " + "  ".join(f"{each:>6.0f}" for each in found),
                flush=True,
            )


def print_samples(nodes: int, hours: int) -> None:
    """Size and time of the samples: each has another temperature or clock, and a port counts errors."""
    chance, lines = random.Random(46), []
    for number in range(hours * 3600 // soak.SAMPLE_SECONDS):
        sample = {"t": 1_763_859_600 + number * soak.SAMPLE_SECONDS, "heat": [chance.randrange(60, 75), 1980]}
        counter = {"hca": "mlx5_0", "port": 1, "counter": "symbol_error", "value": number // 4 + 1}
        lines.append(json.dumps(sample | ({} if number % 4 else {"ports": [counter]})) + "\n")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "samples.zst")
        with ZstdFile(path, "w") as file:
            file.write("".join(lines).encode())
        packed = path.stat().st_size
        start = time.process_time()
        with ZstdFile(path) as file:
            soak.watch(json.loads(line) for line in file.read().splitlines())
        seconds = time.process_time() - start
    raw = sum(map(len, lines))
    for what, count in ((f"samples of a node, {hours} h", 1), (f"of {nodes} nodes", nodes)):
        sizes = f"{count * raw / 1e6:.1f} MB, packed {count * packed / 1e6:.2f} MB"
        print(f"{what}: {sizes}, read in {count * seconds:.2f} s")


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("soaks", 100), ("nodes", 440), ("hours", 168)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    print_samples(given.nodes, given.hours)
    print_series(given.soaks)


if __name__ == "__main__":
    main()
