"""Mutation testing: the share of small faults in the source that the tests notice.

    make mutants [SAMPLE=60] [AREA=checks] [ONLY=busbar/config/values.py:41] [SEED=1] [GOAL=95] [JOBS=2]

Cosmic Ray's operators make the mutants. A mutant is caught when a test of its area fails or times out.
The areas, their tests and the operators are in pyproject.toml, [tool.mutants]. Mutants that no test can catch
are in mutants_not_counted.toml, each with its reason. Everything runs in temporary copies of the checkout.
"""

from __future__ import annotations

import argparse
import compileall
import difflib
import hashlib
import os
import py_compile
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import TestOutcome

PROJECT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["mutants"]
NOT_COUNTED = Path(__file__).with_name("mutants_not_counted.toml")
ENTRIES = tomllib.loads(NOT_COUNTED.read_text())["mutant"]


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    code: str
    diff: str


def use_copy(folder: str) -> None:
    """Make a copy of all files that git does not ignore, and work there: the checkout never changes."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (PROJECT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, copy / name, follow_symlinks=False)
    os.chdir(copy)
    # The mode matters: a mutant written in the same second as the original is compiled anew all the same.
    compileall.compile_dir(copy, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    os.environ.pop("CI", None)  # with CI=true, tests of data beside the checkout fail; here they are skipped


def files_of(area: str) -> list[str]:
    folders = SETTINGS["areas"][area]["source"]
    return sorted(
        str(path.relative_to(PROJECT)) for folder in folders for path in (PROJECT / folder).rglob("*.py")
    )


def candidates(area: str, seed: int) -> list[tuple[str, str, str, int, int]]:
    """(rank, file, operator, occurrence, line) of every mutant; the seed decides the rank."""
    wanted = re.compile("|".join(f"core/(?:{pattern})" for pattern in SETTINGS["operators"]))
    operators = {name: get_operator(name)() for name in operator_names() if wanted.fullmatch(name)}
    found = []
    for file in files_of(area):
        nodes = list(ast_nodes(get_ast((PROJECT / file).read_text())))
        for name, operator in operators.items():
            lines = [start[0] for node in nodes for start, _ in operator.mutation_positions(node)]
            for occurrence, line in enumerate(lines):
                rank = hashlib.sha256(f"{seed} {file} {name} {occurrence}".encode()).hexdigest()
                found.append((rank, file, name, occurrence, line))
    return sorted(found)


def is_counted(file: str, removed: str, added: str) -> bool:
    return not any(
        fnmatch(file, entry["file"]) and entry["before"] in removed and entry.get("after", "") in added
        for entry in ENTRIES
    )


def mutants(found: list[tuple[str, str, str, int, int]], only: str) -> Iterator[Mutant]:
    """The mutants that compile and that are not listed as impossible to catch, in the order of `found`."""
    for _, file, operator, occurrence, line in found:
        if only not in ("", file, f"{file}:{line}"):
            continue
        original = (PROJECT / file).read_text()
        code = mutate_code(original, get_operator(operator)(), occurrence)
        try:
            compile(code, file, "exec")
        except SyntaxError:
            continue
        diff = list(difflib.unified_diff(original.splitlines(), code.splitlines(), n=0, lineterm=""))[3:]
        removed, added = ("\n".join(text[1:] for text in diff if text[0] == sign) for sign in "-+")
        if is_counted(file, removed, added):
            yield Mutant(file, line, code, "\n".join(diff))


def command(area: str) -> str:
    """Runs the area's tests: reproducible, and over at the first failure."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    return shlex.join([sys.executable, "-m", "pytest", *options, *SETTINGS["areas"][area]["tests"]])


def seconds_without_mutant(area: str) -> float:
    """How long the area's tests take. Raises RuntimeError if they fail."""
    started = time.monotonic()
    outcome, output = run_tests(command(area), timeout=600)
    if outcome is not TestOutcome.SURVIVED:
        raise RuntimeError(f"{area}: the tests fail without a mutant: {command(area)}\n{output}")
    return time.monotonic() - started


def is_caught(area: str, mutant: Mutant, timeout: float) -> bool:
    path = Path(mutant.file)
    original = path.read_text()
    path.write_text(mutant.code)
    try:
        outcome, output = run_tests(command(area), timeout)
    finally:
        path.write_text(original)
    if outcome is TestOutcome.INCOMPETENT:
        raise RuntimeError(f"{command(area)} did not start: {output}")
    return bool(outcome is TestOutcome.KILLED)


def measure(area: str, size: int, options: argparse.Namespace, pool: ProcessPoolExecutor) -> tuple[int, int]:
    """(caught, tried) of one area; prints every survivor."""
    found = candidates(area, options.seed)
    sample = list(islice(mutants(found, options.only), size))
    if not sample:
        return 0, 0
    seconds = pool.submit(seconds_without_mutant, area).result()
    timeout = max(60.0, 5 * seconds)
    print(f"{area}: {len(sample)} of {len(found)} mutants; the tests take {seconds:.0f} s", flush=True)
    caught = 0
    results = pool.map(is_caught, [area] * len(sample), sample, [timeout] * len(sample))
    for mutant, noticed in zip(sample, results, strict=True):
        caught += noticed
        if not noticed:
            print(f"survived: {mutant.file}:{mutant.line}\n{mutant.diff}", flush=True)
    return caught, len(sample)


def stale_entries() -> list[str]:
    """Entries of mutants_not_counted.toml whose text no file contains any more."""
    texts = {file: (PROJECT / file).read_text() for area in SETTINGS["areas"] for file in files_of(area)}
    return [
        f"{NOT_COUNTED.name}: no file {entry['file']} contains {entry['before']!r}. Fix: remove the entry."
        for entry in ENTRIES
        if not any(fnmatch(file, entry["file"]) and entry["before"] in text for file, text in texts.items())
    ]


def main() -> int:
    """Exit code: 0 the goal is reached, 1 it is not, 2 nothing could be measured."""
    areas = list(SETTINGS["areas"])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=60, help="mutants, over all areas (default 60)")
    parser.add_argument("--area", choices=["", *areas], default="", help="only this area")
    parser.add_argument("--only", default="", metavar="FILE[:LINE]", help="only mutants of this file or line")
    parser.add_argument("--seed", type=int, default=1, help="another seed draws another sample (default 1)")
    parser.add_argument("--goal", type=float, default=95, help="percent that must be caught (default 95)")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at a time (default 2)")
    options = parser.parse_args()
    chosen = [options.area] if options.area else areas
    for message in stale_entries():
        print(message, file=sys.stderr)
        return 2
    shares = {}
    with (
        tempfile.TemporaryDirectory(prefix="busbar-mutants-") as folder,
        ProcessPoolExecutor(options.jobs, initializer=use_copy, initargs=(folder,)) as pool,
    ):
        for number, area in enumerate(chosen):
            size = options.sample // len(chosen) + (number < options.sample % len(chosen))
            shares[area] = measure(area, size, options, pool)
    shares["all"] = (sum(caught for caught, _ in shares.values()), sum(tried for _, tried in shares.values()))
    if not shares["all"][1]:
        print("No mutants to try. Fix: check AREA, ONLY and SAMPLE.", file=sys.stderr)
        return 2
    print(f"\n{'area':12}{'mutants':>8}{'caught':>8}{'survived':>10}{'share':>9}")
    for area, (caught, tried) in shares.items():
        if tried:
            print(f"{area:12}{tried:8}{caught:8}{tried - caught:10}{caught / tried:9.1%}")
    share = 100 * caught / tried
    print(f"\n{share:.1f} % of the mutants were caught; the goal is {options.goal:g} %.")
    return 0 if share >= options.goal else 1


if __name__ == "__main__":
    sys.exit(main())
