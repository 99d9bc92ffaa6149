"""Prints the lines and files of each part of the tree beside its budgets (`make size`).

It counts all lines of the files in git, without symbolic links, pinned requirements, generated schemas,
passes of drills, dashboards, pictures, fonts, archives and the licence. The exit code is 1 where a budget
is exceeded.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_COUNTED = re.compile(
    r"(^|/)(requirements.*\.txt|go\.sum|LICENSE|(schema|dashboards)/.*\.json)$|\.(svg|tgz|ttf|zst|xz)$"
    r"|stacks/[^/]+/(schema\.json|(.*/)?go\.mod)$|^tests/drills\.jsonl$"
)
# Stacks on the lab's cluster.
LAB_STACKS = r"Pulumi\.(dev|jobs|networks)\.yaml$"
# The first pattern that matches a path is its part. Chart extracts are data.
PARTS = {
    "chart extracts": r"tests/.*/extracts/|stacks/[^/]+/tests/.*/extracts/",
    "lab/offline": r"lab/offline/",
    "judge": r"busbar/judge/",
    "paths": r"busbar/fabric/paths\.py$|host/paths\.sh$",
    "fabric": r"busbar/fabric/|host/slurm-job\.sh$",
    "frame": r"(busbar|components)/frame\.py$",
    "bring-up": r"(busbar|components|host|helm_values|charts)/|__main__\.py$",
    "tests of the core": r"tests/|conftest\.py$",
    **{
        f"stacks/{name}": rf"stacks/{name}/(?!tests/|lab/|{LAB_STACKS}|.*\.md$)"
        for name in ("accept", "slurm", "slurm_k8s", "training", "watch")
    },
    "rest": r"",
}
# Lines of issues that came after the budget of the bring-up was set.
ALLOWANCES = {"what cannot be changed": 600, "facts before NCCL": 700, "administrators of Slurm": 250}
# Lines and files.
BUDGETS = {
    "bring-up": (26_800 + sum(ALLOWANCES.values()), 200),
    "judge": (8_400, 55),
    "fabric": (4_300, 30),
    "paths": (450, 2),
    "frame": (500, 2),
    "stacks/accept": (4_700, None),
    "stacks/slurm": (3_760, None),
    "stacks/slurm_k8s": (2_840, None),
    "stacks/training": (4_000, None),
    "stacks/watch": (2_100, None),
}
TREE = 134_000
TESTS_PER_LINE = 1.15


def main() -> int:
    """Count, print, compare."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for name in filter(None, names):
        path = ROOT / name
        if path.is_symlink() or not path.is_file() or NOT_COUNTED.search(name):
            continue
        part = next(part for part, pattern in PARTS.items() if re.match(pattern, name))
        lines[part] += path.read_bytes().count(b"\n")
        files[part] += 1
    product = sum(lines[part] for part in ("bring-up", "judge", "fabric", "paths", "frame"))
    rows: list[tuple[str, float, float | None]] = []
    for part in PARTS:
        most_lines, most_files = BUDGETS.get(part, (None, None))
        rows += [(part, lines[part], most_lines), (f"{part}, files", files[part], most_files)]
    rows.append(("tree without lab/offline", sum(lines.values()) - lines["lab/offline"], TREE))
    rows.append(("tests per line of the core", lines["tests of the core"] / product, TESTS_PER_LINE))
    for name, found, budget in rows:
        digits = 2 if name.startswith("tests per") else 0
        limit = "" if budget is None else f"at most {budget:,.{digits}f}"
        mark = "  exceeded" if budget is not None and found > budget else ""
        print(f"{name:28}{found:>10,.{digits}f}  {limit}{mark}")
    return int(any(budget is not None and found > budget for _, found, budget in rows))


if __name__ == "__main__":
    sys.exit(main())
