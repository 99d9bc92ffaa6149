"""A site whose hosts do nothing: the programs of this project under the real engine, with replaced plugins.

Its Kubernetes objects are on an API server without nodes.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lab.build import official
from lab.build.go import build
from lab.engine.environment import environment
from lab.offline.kubernetes import PROVIDER
from tests.support import engine_plugins
from tests.support.api_server import ApiServer, definition
from tests.support.engine import PROJECT

SECONDS = 600
STACK = "site"
"""The name of its stacks, until one is renamed."""
CORE, TRAINING, WATCH, CONSUMER = PLACES = (".", "stacks/training", "stacks/watch", "examples/consumer")
HARMLESS = ("same", "create", "update", "read", "refresh")
"""Steps of the engine that neither replace nor delete a resource."""
# Any salt of the lab's passphrase does, and nothing here is a secret.
_SALT = "v1:tarYmadj0iM=:v1:QcvYX8ymfSsmC0XQ:FI+G4klu5nu8KQUSHA2rdBKL2Zc0zw=="
_PLUGIN = '#!/bin/sh\nexec {python} {plugins} {name} "$@"\n'
# Hooks work on hosts and on the cluster, and there are none.
_PROGRAM = """\
import runpy
import pulumi
create = pulumi.ResourceHook.__init__
pulumi.ResourceHook.__init__ = lambda self, name, callback, *more: create(self, name, lambda _: None, *more)
runpy.run_path({program!r}, run_name="__main__")
"""
Object = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """What the engine did with one resource."""

    operation: str
    urn: str

    @property
    def name(self) -> str:
        return self.urn.rpartition("::")[2]

    @property
    def kind(self) -> str:
        """Its type without the module: MPIJob, Command."""
        return self.urn.split("::")[2].rpartition(":")[2]


class Refused(Exception):
    """The engine failed; the text is all that it printed."""


@dataclass(frozen=True)
class EngineSite:
    """The project, as links in `folder`, with stack files and states of its own."""

    folder: Path
    server: ApiServer
    stacks: dict[str, str] = field(default_factory=lambda: dict.fromkeys(PLACES, STACK))
    """The names of its stacks by program; `rename` changes them."""

    def __post_init__(self) -> None:
        below = [Path(place) for place in self.stacks if place != CORE]
        _link(PROJECT, self.folder / "project", below)
        for place in self.stacks:
            program = self.project(place) / "__main__.py"
            program.unlink()
            program.write_text(_PROGRAM.format(program=str(PROJECT / place / "__main__.py")))
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        for name in ("kubernetes", *engine_plugins.PROVIDERS):
            path = bin_folder / f"pulumi-resource-{name}"
            words = {"python": sys.executable, "plugins": engine_plugins.__file__, "name": name}
            path.write_text(_PLUGIN.format(**words))
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
            raise Refused(f"pulumi {shlex.join(arguments[:2])}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def tell(self, cluster: Mapping[str, Any]) -> None:
        """Tell the plugins of the site."""
        engine_plugins.told(self.folder).write_text(json.dumps({"cluster": cluster}))

    def create(self, place: str, config: Mapping[str, Any], secrets: Mapping[str, str] | None = None) -> None:
        """Make the stack, with this configuration."""
        file = self.stack_file(place)
        file.write_text(yaml.safe_dump({"encryptionsalt": _SALT, "config": dict(config)}))
        self.pulumi(place, "stack", "init")
        for key, value in (secrets or {}).items():
            self.pulumi(place, "config", "set", "--secret", key, value)

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
        file = self.stack_file(place)
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def load(self, place: str, state: Mapping[str, Any]) -> None:
        """Make this its state, and put its objects on the API server."""
        path = self.folder / "state.json"
        path.write_text(json.dumps(state))
        self.pulumi(place, "stack", "import", "--file", str(path))
        self.put_objects(state)

    def export(self, place: str) -> dict[str, Any]:
        """The state, with secrets in plain text."""
        found: dict[str, Any] = json.loads(self.pulumi(place, "stack", "export", "--show-secrets"))
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

    def put_objects(self, state: Mapping[str, Any]) -> None:
        """Make on the API server what the stack of `state` has, with its field managers; others of the same
        names go first. The replaced plugin makes nothing there."""
        by_manager: dict[str, list[Object]] = {}
        for each in resources(state):
            outputs = plain(each.get("outputs", {}))
            if manager := outputs.get("__fieldManager"):
                by_manager.setdefault(manager, []).append(outputs["__inputs"])
        own = [each for objects in by_manager.values() for each in objects if each["kind"] != "Namespace"]
        if definitions := list(_definitions(own)):
            self.server.kubectl("apply", "--server-side", "-f", "-", objects=definitions)
            self.server.kubectl("wait", "--for=condition=Established", "crd", "--all")
        if own:
            self.server.kubectl("delete", "--ignore-not-found", "--wait", "-f", "-", objects=own)
        for manager, objects in by_manager.items():
            words = ("apply", "--server-side", f"--field-manager={manager}", "-f", "-")
            self.server.kubectl(*words, objects=objects)

    def stack_file(self, place: str) -> Path:
        """The file of its stack."""
        return self.project(place) / f"Pulumi.{self.stacks[place]}.yaml"

    def variables(self) -> dict[str, str]:
        """The environment of its commands."""
        known = environment(self.folder)
        return {
            **{name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"},
            **known,
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{known['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "PULUMI_DEBUG_COMMANDS": "true",  # it has --event-log
            engine_plugins.FOLDER: str(self.folder),
            engine_plugins.OFFICIAL: _official_provider(known["PATH"]),
            engine_plugins.KUBECONFIG: self.server.kubeconfig,
        }


def resources(state: Mapping[str, Any]) -> list[Any]:
    """The resources of an exported state, without those that are about to be deleted."""
    return [each for each in state["deployment"].get("resources", ()) if not each.get("delete")]


def name_of(resource: Mapping[str, Any]) -> str:
    """The name of a resource of a state."""
    return str(resource["urn"].rpartition("::")[2])


def plain(value: Any) -> Any:
    """A value of a state, without the marks of secrets."""
    if isinstance(value, dict):
        if "plaintext" in value:
            return plain(json.loads(value["plaintext"]))
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def _definitions(objects: list[Object]) -> Iterator[Object]:
    """A CustomResourceDefinition without a schema for each custom kind."""
    kinds = {(each["apiVersion"], each["kind"], "namespace" in each["metadata"]) for each in objects}
    for api_version, kind, namespaced in sorted(kinds):
        group, _, version = api_version.rpartition("/")
        if "." not in group:
            continue
        plural = f"{kind.lower()[:-1]}ies" if kind.endswith("cy") else ""
        scope = "Namespaced" if namespaced else "Cluster"
        yield definition(group, version, kind, plural=plural, scope=scope)


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
