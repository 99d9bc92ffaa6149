"""CPU seconds of a verdict on 2 MB of each hostile shape of the tests (test_hostile.py), and on 8,000 hosts.

    python bench/nccl_hostile.py

Beside them the time of four times the bytes: four times as long is linear. Slowest first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1]))
from busbar.judge.nccl import Expectation, judge
from tests.unit.judge.nccl.logs import Made
from tests.unit.judge.nccl.test_hostile import MANY, SHAPES

WANT = Expectation(profile="h100-ib-8x400", nodes=2)
LINE = {"short lines": 200, "long lines": 8000}


def of_width(shape: Callable[[int, int], str], width: int) -> Callable[[int], str]:
    return lambda i: shape(i, width)


def log(line: Callable[[int], str], size: int) -> Iterator[str]:
    """The beginning of a good log, then about SIZE bytes of LINE."""
    yield from Made().lines()[:5]
    written = 0
    for i in count():
        text = line(i)
        yield text
        written += len(text) + 1
        if written >= size:
            return


def cost(line: Callable[[int], str], size: int) -> float:
    """CPU seconds of one verdict."""
    before = process_time()
    judge(log(line, size), WANT)
    return process_time() - before


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=int, default=2_000_000)
    size = parser.parse_args().bytes
    shapes: dict[str, Callable[[int], str]] = {
        f"{name}, {kind}": of_width(shape, width)
        for name, shape in SHAPES.items()
        for kind, width in LINE.items()
    }
    hosts = {f"many {name}": line for name, line in MANY.items()}
    rows = [(cost(line, size // 4), cost(line, size), name) for name, line in {**shapes, **hosts}.items()]
    hosts_8000 = {f"8,000 lines of {name}": line for name, line in MANY.items()}
    for name, line in hosts_8000.items():
        width = sum(len(line(i)) + 1 for i in range(8000))
        rows.append((cost(line, width // 4), cost(line, width), name))
    print(f"{'s':>7} {'x 1/4':>6}  shape")
    for quarter, whole, name in sorted(rows, key=lambda row: -row[1]):
        print(f"{whole:7.2f} {whole / max(quarter, 0.001):6.1f}  {name}", flush=True)


if __name__ == "__main__":
    main()
