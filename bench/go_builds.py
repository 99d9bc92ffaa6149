"""The cost of the builds of the lab's Go programs, with an empty build cache, in the order of `make up`.

Prints wall and CPU seconds of each build, and the size of the modules that it is the first to need. The
programs go into a folder that is removed afterwards. Modules come from Go's module cache, which keeps them.

    python bench/go_builds.py [--keep-cache]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab import offline
from lab.build.go import Tool, build, environment
from lab.build.tools import TOOLS
from lab.offline.kubernetes import PROVIDER

ROW = "{:<24}{:>8}{:>8}{:>8}{:>9}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep-cache", action="store_true", help="with the build cache as it is")
    wanted = parser.parse_args()
    tools = (*offline.ENGINE, offline.K3S, *offline.CONTAINERD, offline.HELM, *TOOLS, PROVIDER)
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as folder:
        os.environ["BUSBAR_CACHE"] = folder
        if not wanted.keep_cache:
            os.environ["GOCACHE"] = str(Path(folder) / "go-build")
        print(ROW.format("build", "wall s", "CPU s", "MB", "modules"))
        known: set[str] = set()
        total = [0.0, 0.0, 0.0, 0]
        for tool in tools:
            found = modules(tool) - known
            known |= found
            row = [*measured(tool), megabytes(tool, found), len(found)]
            total = [one + other for one, other in zip(total, row, strict=True)]
            print(ROW.format(tool.name, *(f"{value:.0f}" for value in row)), flush=True)
        print(ROW.format("all", *(f"{value:.0f}" for value in total)))


def measured(tool: Tool) -> tuple[float, float]:
    """Wall and CPU seconds of the build."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    build(tool)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu


def modules(tool: Tool) -> set[str]:
    """The modules with the packages of a program, as PATH@VERSION; downloads them."""
    with tempfile.TemporaryDirectory() as folder:
        modfile = [f"-modfile={tool.sources(Path(folder))}"] if tool.sources else []
        template = "{{with .Module}}{{or .Replace .}}{{end}}"
        lines = _run(["go", "list", *modfile, "-deps", "-f", template, tool.package], tool).splitlines()
    return {line.replace(" ", "@") for line in lines if " " in line}


def megabytes(tool: Tool, wanted: set[str]) -> float:
    """The size of the modules' downloads."""
    if not wanted:
        return 0.0
    text = _run(["go", "mod", "download", "-json", *sorted(wanted)], tool)
    answers, at, decoder = [], 0, json.JSONDecoder()
    while at < len(text.rstrip()):
        answer, at = decoder.raw_decode(text, at)
        answers.append(answer)
        at += len(text[at:]) - len(text[at:].lstrip())
    return sum(Path(answer["Zip"]).stat().st_size for answer in answers) / 1e6


def _run(command: list[str], tool: Tool) -> str:
    done = subprocess.run(
        command,
        cwd=tool.module,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        timeout=1200,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    main()
