"""Every text of the engine that busbar reads (busbar/cli/stack/errors.py), made by the real engine."""

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
from tests.support.engine import ended, throwaway_project

SECONDS = 300

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
    if mode == "reference":
        async def main():
            await pulumi.StackReference("organization/tiny/nowhere").get_output_details("a")
        pulumi.run(main)
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
        given = {key: value for key, value in environment.items() if value is not None}
        command = ["pulumi", *words, "--non-interactive", "--color", "never"]
        return ended(command, self.folder, given, SECONDS).stdout

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


Case = Callable[[Engine], str]

# Name of a text in errors.py -> what makes it.
TEXTS: Mapping[str, Case] = {
    "NO_STACK": lambda engine: engine("stack", "export", "--stack", "prod"),
    "NO_OUTPUT": lambda engine: engine("stack", "output", "kubeconfig", "--stack", "dev"),
    "LOCK_HOLDER": locked,
    "TRUNCATED": damaged("locks/organization/tiny/dev/1.json.2.tmp"),
    "UNREADABLE_STATE": damaged("stacks/tiny/dev.json"),
    "PENDING": interrupted,
    "PENDING_STEP": interrupted,
    "PLUGIN_NOTE": lambda engine: engine.up(),
}
# Begin of a fix -> what makes the error that it is for.
FIXES: Mapping[str, Case] = {
    "export PULUMI_CONFIG_PASSPHRASE, or": lambda engine: engine.up(PULUMI_CONFIG_PASSPHRASE=None),
    "export the PULUMI_CONFIG_PASSPHRASE": lambda engine: engine.up(PULUMI_CONFIG_PASSPHRASE="another"),
    "`pulumi login`": lambda engine: engine(
        "stack", "ls", PULUMI_BACKEND_URL=None, PULUMI_HOME=str(engine.folder / "home")
    ),
    "create the folder": lambda engine: engine.up(PULUMI_BACKEND_URL="file:///nowhere/at/all"),
    "let your user write": lambda engine: engine.up(PULUMI_BACKEND_URL="file:///sys"),
    "`make venv`": without_virtualenv,
    "`pulumi install": lambda engine: engine.up(
        MODE="plugin", PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION="true"
    ),
    "wait until that update has ended": locked,
    "name the stack as": lambda engine: engine.up(MODE="reference"),
}
# Part of an error that only follows another one -> what makes it.
FOLLOWING: Mapping[str, Case] = {
    "update failed": lambda engine: engine.up(MODE="fail"),
    "exited with non-zero exit code": lambda engine: engine.up(MODE="exit"),
    "whose registration isn't pending": lambda engine: engine.up("--continue-on-error", MODE="fail"),
    "'NoneType' object": lambda engine: engine.up("--continue-on-error", MODE="reference"),
    "unknown provider": lambda engine: engine.up("--continue-on-error", MODE="provider"),
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    folder = tmp_path / "project"
    made = Engine(folder, throwaway_project(folder, PROGRAM))
    made("stack", "init", "dev")
    yield made
    made.kill()


def messages(printed: str) -> list[str]:
    return [re.sub(r"^\s*(error|warning): ", "", line) for line in printed.splitlines()]


@pytest.mark.parametrize("name", TEXTS)
def test_the_engine_says_it_in_this_way(name: str, engine: Engine) -> None:
    printed = TEXTS[name](engine)
    assert any(map(getattr(errors, name).search, messages(printed))), printed


@pytest.mark.parametrize("begin", FIXES)
def test_an_error_of_the_engine_has_this_fix(begin: str, engine: Engine) -> None:
    printed = FIXES[begin](engine)
    assert any(fix.startswith(begin) for fix in errors.fixes(messages(printed))), printed


@pytest.mark.parametrize("part", FOLLOWING)
def test_an_error_that_only_follows_another_one_is_not_shown(part: str, engine: Engine) -> None:
    printed = FOLLOWING[part](engine)
    found = [line.rpartition("error: ")[2].strip() for line in printed.splitlines() if part in line]
    assert found and errors.reasons([*found, "the cause"], "") == ["the cause"], printed


def test_every_text_of_the_engine_is_made_here() -> None:
    named = {name for name, value in vars(errors).items() if isinstance(value, re.Pattern)}
    assert {name for name in named if not name.startswith("_")} == {*TEXTS}
    # The others are fixes for errors of SSH.
    fixes = [fix for fix in errors._FIXES.values() if isinstance(fix, str)]
    assert [fix for fix in fixes if not any(map(fix.startswith, FIXES))] == []
