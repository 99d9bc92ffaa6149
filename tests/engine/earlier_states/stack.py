"""A stack under the real engine, with the program of any checkout, on a site that does nothing.

Its Kubernetes objects are on an API server without nodes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lab.build import official
from lab.build.go import build
from lab.engine.environment import environment
from lab.offline.kubernetes import PROVIDER
from tests.engine.earlier_states import objects, plugins
from tests.engine.earlier_states.configurations import STACK as NAME
from tests.support.api_server import ApiServer

SECONDS = 600
FOLDER = "@FOLDER@"
"""Stands for the folder of a Checkout in configurations and states."""
VENV = "@VENV@"
"""Stands for the virtual environment there: Commands of stacks/training name its interpreter."""
_PLACES = ("sourcePosition", "stackTrace")
"""Where in the program a resource was made: of no interest, and paths of the machine that made the state."""
CORE, TRAINING, WATCH, CONSUMER = PLACES = (".", "stacks/training", "stacks/watch", "examples/consumer")
_PLUGIN = '#!/bin/sh\nexec {python} {plugins} {name} "$@"\n'

# Its hooks work on hosts and on the cluster, and there are none.
_PROGRAM = """\
import runpy
import pulumi
create = pulumi.ResourceHook.__init__
pulumi.ResourceHook.__init__ = lambda self, name, callback, *more: create(self, name, lambda _: None, *more)
runpy.run_path({program!r}, run_name="__main__")
"""


@dataclass(frozen=True)
class Step:
    """What the engine did with one resource."""

    operation: str
    urn: str


class Refused(Exception):
    """The engine failed; the text is all that it printed."""


@dataclass(frozen=True)
class Checkout:
    """The project of a checkout, as links in `folder`, with stack files and states of its own."""

    root: Path
    folder: Path
    server: ApiServer
    stacks: dict[str, str] = field(default_factory=lambda: dict.fromkeys(PLACES, NAME))
    """The names of the stacks; `rename` changes them."""

    def __post_init__(self) -> None:
        _link(self.root, self.folder / "project", [Path(place) for place in PLACES[1:]])
        for place in PLACES:
            self.project(place).joinpath("__main__.py").unlink()
            program = self.root / place / "__main__.py"
            self.project(place).joinpath("__main__.py").write_text(_PROGRAM.format(program=str(program)))
        shutil.copytree(Path(__file__).parent / "site", self.folder / "site")
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        for name in ("kubernetes", *plugins.PROVIDERS):
            path = bin_folder / f"pulumi-resource-{name}"
            path.write_text(_PLUGIN.format(python=sys.executable, plugins=plugins.__file__, name=name))
            path.chmod(0o755)

    def project(self, place: str) -> Path:
        """The folder of a program."""
        return self.folder / "project" / place

    def pulumi(self, place: str, *arguments: str) -> str:
        """What the command prints. Raises Refused where it fails."""
        done = subprocess.run(
            ["pulumi", *arguments, "--stack", self.stacks[place], "--non-interactive", "--color", "never"],
            cwd=self.project(place), env=self.variables(), text=True, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Refused(f"pulumi {' '.join(arguments[:2])}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def tell(self, cluster: Mapping[str, Any], *, running: bool = True) -> None:
        """Tell the plugins of the site. `running`: whether preflight finds K3s on its hosts."""
        plugins.told(self.folder).write_text(json.dumps({"cluster": cluster, "running": running}))

    def create(self, place: str, configuration: str) -> None:
        """Make the stack, with this text as its file."""
        self._stack_file(place).write_text(self._here(configuration))
        self.pulumi(place, "stack", "init")

    def rename(self, place: str, stack: str, project: str) -> None:
        """Rename the stack, its file, and the project."""
        file = self.project(place) / "Pulumi.yaml"
        # A project may declare keys of its own name only, and the programs read those of their former one.
        written = {**yaml.safe_load(file.read_text()), "name": project, "config": {}}
        self.pulumi(place, "stack", "rename", f"organization/{project}/{stack}")
        file.unlink()
        file.write_text(yaml.safe_dump(written))
        self.stacks[place] = stack

    def edit(self, place: str, old: str, new: str) -> None:
        """Replace a text that is in the stack's file."""
        file = self._stack_file(place)
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def configuration(self, place: str) -> str:
        """The text of its file."""
        return self._elsewhere(self._stack_file(place).read_text())

    def load(self, place: str, state: Mapping[str, Any]) -> None:
        """Make this its state, and put its objects on the API server."""
        path = self.folder / "state.json"
        path.write_text(self._here(json.dumps(state)))
        self.pulumi(place, "stack", "import", "--file", str(path))
        objects.put(self.server, json.loads(path.read_text()))

    def export(self, place: str) -> dict[str, Any]:
        """The state, with secrets in plain text."""
        text = self.pulumi(place, "stack", "export", "--show-secrets")
        found: dict[str, Any] = json.loads(self._elsewhere(text))
        for resource in found["deployment"].get("resources", ()):
            for key in _PLACES:
                resource.pop(key, None)
        return found

    def up(self, place: str) -> tuple[list[Step], str]:
        """Run an update; returns its steps, and what the engine printed if it failed."""
        log, error = self.folder / "events.jsonl", ""
        log.unlink(missing_ok=True)
        try:
            self.pulumi(place, "up", "--yes", "--skip-preview", "--event-log", str(log))
        except Refused as refused:
            error = str(refused)
        events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        steps = [event["resourcePreEvent"]["metadata"] for event in events if "resourcePreEvent" in event]
        return [Step(each["op"], each["urn"]) for each in steps], error

    def _stack_file(self, place: str) -> Path:
        return self.project(place) / f"Pulumi.{self.stacks[place]}.yaml"

    def _elsewhere(self, text: str) -> str:
        return text.replace(str(self.folder), FOLDER).replace(sys.prefix, VENV)

    def _here(self, text: str) -> str:
        return text.replace(FOLDER, str(self.folder)).replace(VENV, sys.prefix)

    def variables(self) -> dict[str, str]:
        """The environment of its commands."""
        known = environment(self.folder)
        return {
            **{name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"},
            **known,
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{known['PATH']}",
            "PYTHONPATH": str(self.root),
            "PULUMI_DEBUG_COMMANDS": "true",  # it has --event-log
            plugins.FOLDER: str(self.folder),
            plugins.OFFICIAL: _official_provider(known["PATH"]),
            plugins.KUBECONFIG: self.server.kubeconfig,
        }


def _official_provider(path: str) -> str:
    """The provider that the lab would use: installed, or built here."""
    build(PROVIDER)
    found = official.plugin("kubernetes", {**os.environ, "PATH": path})
    assert found
    return found


def _link(source: Path, folder: Path, below: list[Path]) -> None:
    """A folder of links to everything in `source` but stack files; real folders along the paths `below`."""
    folder.mkdir(parents=True)
    for entry in source.iterdir():
        stack_file = entry.name.startswith("Pulumi.") and entry.name != "Pulumi.yaml"
        if entry.name == ".git" or stack_file:
            continue
        inside = [path.relative_to(entry.name) for path in below if path.parts[:1] == (entry.name,)]
        if inside:
            _link(entry, folder / entry.name, inside)
        else:
            (folder / entry.name).symlink_to(entry)
