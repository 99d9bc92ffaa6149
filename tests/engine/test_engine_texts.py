"""Every text of the engine that busbar reads (busbar/cli/stack/errors.py), made by the real engine."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from busbar.cli.stack import errors
from tests.support.engine import throwaway_project

SECONDS = 300
OF_PLUGINS = {
    "UNREACHABLE", "UNREACHABLE_STEP", "LOGIN_REFUSED", "COMMAND", "CONNECTION_ENDED", "SCRIPT_FAILED",
    "SECRET_MISSING",
}  # fmt: skip

PROGRAM = """
    import os, pathlib, time
    import pulumi
    from pulumi import dynamic

    class Provider(dynamic.ResourceProvider):
        def create(self, props):
            if props["mode"] in ("fail", "provider"):
                raise Exception("the switch is off")
            if props["mode"] == "wait":
                pathlib.Path(props["folder"], "begun").touch()
                time.sleep(900)
            return dynamic.CreateResult(id_="1", outs=dict(props))

    class Step(dynamic.Resource):
        def __init__(self, name, mode):
            super().__init__(Provider(), name, {"mode": mode, "folder": str(pathlib.Path(__file__).parent)})

    mode = os.environ["MODE"]
    if mode == "exit":
        os._exit(1)
    first = Step("first", mode)
    if mode == "fail":
        after = pulumi.ResourceOptions(depends_on=[first])
        pulumi.ComponentResource("tiny:index:Skipped", "skipped", None, after).register_outputs({})
    if mode == "provider":
        import pulumi_random
        provider = pulumi_random.Provider("cluster", opts=pulumi.ResourceOptions(depends_on=[first]))
        pulumi_random.RandomString("word", length=4, opts=pulumi.ResourceOptions(provider=provider))
    if mode == "plugin":
        pulumi.CustomResource("nosuch:index:Thing", "thing")
"""


@dataclass
class Engine:
    """`pulumi` in a throwaway project with a stack."""

    folder: Path
    environment: Mapping[str, str]
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __call__(self, *words: str, **changed: str | None) -> str:
        """What a command printed, to both of its outputs; a variable that is None is not set."""
        environment = {**self.environment, "MODE": "make", **changed}
        done = subprocess.run(
            ["pulumi", *words, "--non-interactive", "--color", "never"],
            cwd=self.folder, env={key: value for key, value in environment.items() if value is not None},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
        )  # fmt: skip
        return done.stdout

    def up(self, *words: str, **changed: str | None) -> str:
        return self("up", "--yes", "--skip-preview", "--stack", "dev", *words, **changed)

    def begun(self) -> subprocess.Popen[bytes]:
        """An update in the middle of its first step."""
        process = subprocess.Popen(
            ["pulumi", "up", "--yes", "--skip-preview", "--non-interactive", "--stack", "dev"],
            cwd=self.folder, env={**self.environment, "MODE": "wait"}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.running.append(process)
        deadline = time.monotonic() + SECONDS
        while not (self.folder / "begun").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        return process

    def kill(self) -> None:
        """End the updates that were begun, with their plugins."""
        for process in self.running:
            if process.poll() is None:
                # The engine first, so that it does not see its plugins end.
                engine = psutil.Process(process.pid)
                for each in (engine, *engine.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with the one before it
                        each.kill()
                process.wait(SECONDS)


def locked(engine: Engine) -> str:
    engine.begun()
    return engine.up()


def interrupted(engine: Engine) -> str:
    engine.begun()
    engine.kill()
    engine("cancel", "--yes", "dev")
    return engine.up()


def damaged(name: str) -> Callable[[Engine], str]:
    """An update with this file empty."""

    def update(engine: Engine) -> str:
        path = engine.folder / "state/.pulumi" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        return engine.up()

    return update


def without_virtualenv(engine: Engine) -> str:
    file = engine.folder / "Pulumi.yaml"
    file.write_text("name: tiny\nruntime: {name: python, options: {virtualenv: nowhere}}\n")
    return engine.up()


CASES: Mapping[str, Callable[[Engine], str]] = {
    "NO_PASSPHRASE": lambda engine: engine.up(PULUMI_CONFIG_PASSPHRASE=None),
    "WRONG_PASSPHRASE": lambda engine: engine.up(PULUMI_CONFIG_PASSPHRASE="another"),
    "NOT_LOGGED_IN": lambda engine: engine(
        "stack", "ls", PULUMI_BACKEND_URL=None, PULUMI_HOME=str(engine.folder / "home")
    ),
    "NO_STACK": lambda engine: engine("stack", "export", "--stack", "prod"),
    "NO_OUTPUT": lambda engine: engine("stack", "output", "kubeconfig", "--stack", "dev"),
    "NO_STATE_FOLDER": lambda engine: engine.up(PULUMI_BACKEND_URL="file:///nowhere/at/all"),
    "NOT_WRITTEN": lambda engine: engine.up(PULUMI_BACKEND_URL="file:///sys"),
    "NO_VIRTUALENV": without_virtualenv,
    "NO_PLUGIN": lambda engine: engine.up(MODE="plugin", PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION="true"),
    "LOCKED": locked,
    "LOCK_HOLDER": locked,
    "TRUNCATED": damaged("locks/organization/tiny/dev/1.json.2.tmp"),
    "UNREADABLE_STATE": damaged("stacks/tiny/dev.json"),
    "PENDING": interrupted,
    "PENDING_STEP": interrupted,
    "UPDATE_FAILED": lambda engine: engine.up(MODE="fail"),
    "PROGRAM_FAILED": lambda engine: engine.up(MODE="exit"),
    "COMPONENT_SKIPPED": lambda engine: engine.up("--continue-on-error", MODE="fail"),
    "PROVIDER_SKIPPED": lambda engine: engine.up("--continue-on-error", MODE="provider"),
    "PLUGIN_NOTE": lambda engine: engine.up(),
}


def _names(case: Callable[[Engine], str]) -> str:
    """The texts that a case makes."""
    return " ".join(name for name, each in CASES.items() if each is case)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    folder = tmp_path / "project"
    made = Engine(folder, throwaway_project(folder, PROGRAM))
    made("stack", "init", "dev")
    yield made
    made.kill()


@pytest.mark.parametrize("case", dict.fromkeys(CASES.values(), 0), ids=_names)
def test_the_engine_says_it_in_this_way(case: Callable[[Engine], str], engine: Engine) -> None:
    printed = case(engine)
    messages = [re.sub(r"^\s*(error|warning): ", "", line) for line in printed.splitlines()]
    for name in _names(case).split():
        assert any(map(getattr(errors, name).search, messages)), printed


def test_every_text_of_the_engine_is_made_here() -> None:
    texts = {name for name, value in vars(errors).items() if isinstance(value, re.Pattern)}
    assert texts == {*CASES, *OF_PLUGINS}
