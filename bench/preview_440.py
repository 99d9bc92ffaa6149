"""`pulumi preview` of a large site against a bare program that registers as many resources, in one run.

Prints wall and CPU time and the largest resident set of one process (engine, program or plugin) for each,
and the ratios. The bare program does nothing but register `remote.Command`s, of which a site mostly consists:
what is above its time is ours.

    python bench/preview_440.py [--workers 440] [--pools 10] [--bare 881]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.project import ROOT, Project, configure
from tests.support.clusters import site

BARE_PROGRAM = """\
from pulumi_command import remote
login = remote.ConnectionArgs(host="192.0.2.1", user="root", port=22, host_key="ssh-ed25519 AAAA")
for number in range({count}):
    remote.Command(f"bare-{{number}}", create="true", connection=login)
"""


@dataclass(frozen=True)
class Preview:
    """One preview: resources it would create, wall and CPU seconds, and the largest process in MiB."""

    what: str
    resources: int
    seconds: float
    cpu_seconds: float
    rss_mib: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=440)
    parser.add_argument("--pools", type=int, default=10)
    parser.add_argument("--bare", type=int, default=881, help="resources of the bare program")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as folder:
        bench = Bench(Path(folder))
        bench.warm_up()
        whole = bench.busbar(wanted.workers, wanted.pools)
        bare, same = bench.bare(wanted.bare), bench.bare(whole.resources)
        part = bench.busbar(max(1, wanted.workers // 4), wanted.pools)
    print_table(whole, part, bare, same)
    growth = (whole.seconds / part.seconds) / (whole.resources / part.resources)
    for base in (bare, same):
        wall, cpu = whole.seconds / base.seconds, whole.cpu_seconds / base.cpu_seconds
        print(f"busbar / bare program of {base.resources}: wall x {wall:.2f}, CPU x {cpu:.2f} (aim: 1.6)")
    print(f"largest process: {whole.rss_mib:.0f} MiB (aim: below 600)")
    print(f"time per resource against a quarter of the workers: x {growth:.2f} (aim: at most 1)")


def print_table(*rows: Preview) -> None:
    """One line per preview."""
    print(f"{'preview of':<24}{'resources':>10}{'wall s':>8}{'CPU s':>8}{'MiB':>6}")
    for row in rows:
        print(
            f"{row.what:<24}{row.resources:>10}{row.seconds:>8.1f}{row.cpu_seconds:>8.1f}{row.rss_mib:>6.0f}"
        )


class Bench:
    """Stacks in a folder that is removed afterwards."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._project = Project(folder)

    def warm_up(self) -> None:
        """Load the engine, the plugins and Python's bytecode from the disk once, outside the measurement."""
        self.busbar(1, 1)
        self.bare(1)

    def busbar(self, workers: int, pools: int) -> Preview:
        """The program of this repository for a site of that size."""
        names = [f"pool-{number}" for number in range(min(pools, workers))]
        sizes = {name: len(range(index, workers, len(names))) for index, name in enumerate(names)}
        config = {"busbar:cluster": site(workers=sizes)}
        return self.preview(f"busbar, {workers} workers", self._project.path, f"site-{workers}", config)

    def bare(self, count: int) -> Preview:
        """A program of `count` Commands."""
        name = f"bare-{count}"
        project = self._folder / name
        project.mkdir(exist_ok=True)
        runtime = {"name": "python", "options": {"virtualenv": str(ROOT / ".venv")}}
        (project / "Pulumi.yaml").write_text(yaml.safe_dump({"name": name, "runtime": runtime}))
        (project / "__main__.py").write_text(BARE_PROGRAM.format(count=count))
        return self.preview("bare program", project, f"bare-{count}", {})

    def preview(self, what: str, project: Path, stack: str, config: Mapping[str, Any]) -> Preview:
        """What a preview of `stack` with this configuration takes; `project` is a folder of its own."""
        if not (project / f"Pulumi.{stack}.yaml").exists():
            self._project.succeed("pulumi", "stack", "init", stack, cwd=project)
        configure(project, stack, config)
        command = ["pulumi", "preview", "--stack", stack, "--non-interactive", "--color", "never"]
        done = self._project.succeed(*command, cwd=project)
        created = re.search(r"\+ (\d+) to create", done.text)
        if created is None:
            message = f"{' '.join(command)} did not say how much it would create"
            raise SystemExit(f"{message}:\n{done.text[-2000:]}")
        return Preview(what, int(created[1]), done.seconds, done.cpu_seconds, done.rss_mib)


if __name__ == "__main__":
    main()
