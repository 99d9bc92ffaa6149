"""How the WARN and INFO texts of every NCCL release are judged, from a clone of NCCL.

    git clone https://github.com/NVIDIA/nccl && python bench/nccl_warnings.py nccl

Prints each kind with its number of texts, with --all every text with its releases. Of INFO these are the
texts that look like a failure or are listed. Then the WARN texts without a rule that public threads quote,
by their number of threads (nccl_warning_threads.yaml). Exits 1 where a listed text (diagnose/warnings.yaml
and info.yaml) is in no release of its source, or where an INFO text that looks like a failure is not listed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from busbar.judge.nccl.diagnose import load
from busbar.judge.nccl.diagnose.rules import VALUE, LineRules, holds, parts, rule

THREADS = Path(__file__).with_name("nccl_warning_threads.yaml")
RELEASE = re.compile(r"v2\.\d+\.\d+-\d+")
TEXT = r'((?:"(?:[^"\\]|\\.)*"|\s|PRI\w+)+)'
CALLS = {
    "WARN": re.compile(rf"\bWARN\s*\(\s*{TEXT}"),
    "INFO": re.compile(rf'\bINFO(?:_LOC)?\s*\([^"()]*,\s*{TEXT}'),
}
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


def texts(clone: str, level: str) -> dict[tuple[str, str], list[str]]:
    """Text of a message of LEVEL and its file -> the releases that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    of_blob: dict[str, list[str]] = {}
    for tag in releases(clone):
        for blob, path in files(clone, tag):
            if blob not in of_blob:
                source = git(clone, "cat-file", "-p", blob)
                of_blob[blob] = ["".join(STRING.findall(m)) for m in CALLS[level].findall(source)]
            for text in of_blob[blob]:
                found.setdefault((text, path), []).append(tag)
    return found


def files(clone: str, tag: str) -> Iterator[tuple[str, str]]:
    """Blob and path of each source file of a release."""
    for line in git(clone, "ls-tree", "-r", tag, "src").splitlines():
        meta, path = line.split("\t")
        if path.endswith(SUFFIXES):
            yield meta.split()[2], path


def kind(text: str, level: str) -> str | None:
    """The judgement on a message of TEXT in a table; None for INFO that gets none."""
    rules = LineRules()
    where = "file.cc:7 " if level == "WARN" else ""
    rules.look(f"worker-0:40:90 [0] {where}NCCL {level} {filled(text)}", 1, level=level, stage="table")
    known = rules.known_lines()
    if known:
        severity = "no verdict" if rule(known[0].name).no_verdict else known[0].severity
        return f"{level} {severity}: {known[0].name}"
    if rules.unknown_lines():
        return f"{level} unknown"
    listed = level == "WARN" or any(holds(text, parts(one)) for one, _ in listed_info())
    return f"{level} harmless" if listed else None


def filled(text: str) -> str:
    """TEXT with values in place of %s and %d."""
    return VALUE.sub(lambda value: "7" if value[0][-1] in "dux" else "x", text)


def listed_info() -> Iterator[tuple[str, str]]:
    """The texts of info.yaml with their source."""
    info = load("info.yaml")
    for table in (*(each["contains"] for each in info["rules"]), info["harmless"]):
        yield from ((text, source) for source, found in table.items() for text in found)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clone")
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    wrong = False
    listed = {
        "WARN": [(row["contains"], row["source"]) for row in load("warnings.yaml")],
        "INFO": listed_info(),
    }
    for level, rows in listed.items():
        found = texts(args.clone, level)
        kinds = {text: said for text, _ in found if (said := kind(text, level)) is not None}
        for (text, path), tags in sorted(
            found.items(), key=lambda item: (kinds.get(item[0][0], ""), item[0][1])
        ):
            if text in kinds and (args.all or kinds[text] == "INFO unknown"):
                print(f"{kinds[text]:30} {tags[0]} to {tags[-1]} {path}: {text}")
        for name, count in sorted(Counter(kinds.values()).items()):
            print(f"{count:5} {name}")
        absent = [row for row in rows if row[1].startswith("src/") and not has(found, *row)]
        for text, source in absent:
            print(f"not in any release: {text} ({source})")
        wrong |= bool(absent) or "INFO unknown" in kinds.values()
    threads = yaml.safe_load(THREADS.read_text(encoding="utf-8"))
    for text, count in sorted(threads["threads"].items(), key=lambda item: -item[1]):
        if kind(text, "WARN") == "WARN unknown":
            print(f"{count:5} threads by {threads['counted']} quote a WARN that has no rule: {text}")
    print(f"of {len(releases(args.clone))} releases, the newest {releases(args.clone)[-1]}")
    return wrong


def has(found: dict[tuple[str, str], list[str]], text: str, source: str) -> bool:
    """True if a file of SOURCE prints TEXT. For an async event only the text before its name is compared."""
    wanted = parts(re.sub(r"(async event ?: ).*", r"\1", text))
    return any(holds(printed, wanted) and path in source for printed, path in found)


if __name__ == "__main__":
    sys.exit(main())
