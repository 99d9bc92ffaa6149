"""How the WARN texts of every NCCL release are judged, from a clone of NCCL.

    git clone https://github.com/NVIDIA/nccl && python bench/nccl_warnings.py nccl

Prints each kind with its number of texts, with --all every text with its releases. Exits 1 where a text that
is listed as harmless (diagnose/warnings.yaml) is in no release of its source.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from busbar.judge.nccl.diagnose import load
from busbar.judge.nccl.diagnose.rules import LineRules

RELEASE = re.compile(r"v2\.\d+\.\d+-\d+")
WARN = re.compile(r'\bWARN\s*\(\s*((?:"(?:[^"\\]|\\.)*"|\s|PRI\w+)+)')
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
SUFFIXES = (".cc", ".cu", ".h", ".cpp")


def git(clone: str, *words: str) -> str:
    """What git prints."""
    run = subprocess.run(["git", "-C", clone, *words], capture_output=True, check=True)
    return run.stdout.decode("utf-8", "replace")


def releases(clone: str) -> list[str]:
    """Tags of NCCL 2, oldest first."""
    tags = [t for t in git(clone, "tag").split() if RELEASE.fullmatch(t)]
    return sorted(tags, key=lambda tag: [int(n) for n in re.findall(r"\d+", tag)])


def texts(clone: str) -> dict[tuple[str, str], list[str]]:
    """Text of a WARN and its file -> the releases that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    of_blob: dict[str, list[str]] = {}
    for tag in releases(clone):
        for blob, path in files(clone, tag):
            if blob not in of_blob:
                source = git(clone, "cat-file", "-p", blob)
                of_blob[blob] = ["".join(STRING.findall(m)) for m in WARN.findall(source)]
            for text in of_blob[blob]:
                found.setdefault((text, path), []).append(tag)
    return found


def files(clone: str, tag: str) -> Iterator[tuple[str, str]]:
    """Blob and path of each source file of a release."""
    for line in git(clone, "ls-tree", "-r", tag, "src").splitlines():
        meta, path = line.split("\t")
        if path.endswith(SUFFIXES):
            yield meta.split()[2], path


def kind(text: str) -> str:
    """What busbar says of a WARN of TEXT."""
    rules = LineRules()
    rules.look(f"worker-0:40:90 [0] file.cc:7 NCCL WARN {text}", 1, level="WARN")
    known = rules.known_lines()
    return (
        f"{known[0].severity}: {known[0].name}"
        if known
        else "unknown"
        if rules.unknown_lines()
        else "harmless"
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clone")
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    found = texts(args.clone)
    kinds = {text: kind(text) for text, _ in found}
    for (text, path), tags in sorted(found.items(), key=lambda item: (kinds[item[0][0]], item[0][1])):
        if args.all:
            print(f"{kinds[text]:30} {tags[0]} to {tags[-1]} {path}: {text}")
    for name, count in sorted(Counter(kinds.values()).items()):
        print(f"{count:5} {name}")
    print(f"{len(kinds):5} texts of {len(releases(args.clone))} releases")
    absent = [
        row for row in load("warnings.yaml") if row["source"].startswith("src/") and not has(found, row)
    ]
    for row in absent:
        print(f"not in any release: {row['contains']} ({row['source']})")
    return bool(absent)


def has(found: dict[tuple[str, str], list[str]], row: dict[str, str]) -> bool:
    """Whether a file of the row's source prints its text; of an event the words are those of verbs."""
    text = re.sub(r"(Got async event : ).*", r"\1", row["contains"])
    return any(text in printed and path in row["source"] for printed, path in found)


if __name__ == "__main__":
    sys.exit(main())
