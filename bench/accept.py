"""Prints the plan of `busbar accept`, and the cost of its own work: evidence, rows and document.

The cabling is also measured alone: reading the fabric and its design, and the comparison.

    python bench/accept.py [--nodes 8,440]

Planned minutes are those of `busbar accept plan` without soak, DCGM and storage. The evidence is that of a
healthy simulated cluster. Goals: 45 minutes at any size, own work below 5 % of it; the cabling of 440 nodes
in 1 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from stacks.accept.package import document
from stacks.accept.package.document import verify
from stacks.accept.package.evidence import Evidence, files_of
from stacks.accept.package.kinds import KINDS, Question, Row
from stacks.accept.package.subjects import STAGES
from stacks.accept.tests.unit import made

# Stages of which a site may have no program, or the command names no folder.
OPTIONAL = ("stress", "storage", "training", "soak", "after")
ROW = Row(id="cabling.h100.rails")
HEADER = ("nodes", "planned min", "document s", "verify s", "cabling s", "own work %", "folder MiB")


def timed(work: Callable[[], object]) -> float:
    """The seconds of the work."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def row(nodes: int) -> tuple[str, ...]:
    """The figures of a size."""
    made.WORKERS = tuple(f"busbar-worker-{number}" for number in range(1, nodes + 1))
    planned = sum(stage.seconds(nodes) for stage in STAGES if stage.name not in OPTIONAL)
    with tempfile.TemporaryDirectory() as name:
        folder = made.evidence(Path(name))
        written = timed(lambda: document.write(folder))
        verified = timed(lambda: verify(folder, None))
        evidence = Evidence(folder)
        judged = Question(ROW, evidence.begun.site.pools["h100"], evidence)
        # The time to read the reports is that of the inventory.
        assert len(judged.reports) == nodes
        cabled = timed(lambda: KINDS["cabling.rails"].find(judged))
        size = sum(file.stat().st_size for file in files_of(folder).values()) / 2**20
    share = 100 * written / planned
    return (
        str(nodes),
        f"{planned / 60:.0f}",
        f"{written:.1f}",
        f"{verified:.1f}",
        f"{cabled:.2f}",
        f"{share:.2f}",
        f"{size:.1f}",
    )


def main() -> None:
    """Print a row per size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", default="8,440", help="sizes")
    sizes = [int(each) for each in parser.parse_args().nodes.split(",")]
    print("  ".join(f"{title:>11}" for title in HEADER))
    for nodes in sizes:
        print("  ".join(f"{value:>11}" for value in row(nodes)), flush=True)


if __name__ == "__main__":
    main()
