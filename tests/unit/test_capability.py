"""Capabilities are found by their folders and by entry points; a wrong door is refused."""

import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from busbar import capability
from busbar.capability import capabilities
from busbar.cli.main import build
from busbar.cli.stack.report import gate_of
from busbar.outputs import CLUSTER_GATE

PROJECT = Path(__file__).parents[2]
USES = ("commands", "config", "operations", "measure", "changed", "drains", "nodes", "ready", "jobs", "judge")

DOOR = """
from busbar.capability import Capability, Gate

CAPABILITY = Capability(
    name={name!r}, help="", commands="{module}", config="{module}:CONFIG",
    gate=Gate("probe_version", "probe_passed", "probe_reasons", "probe failed", "probe.run", "{module}"),
)
"""


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    capabilities.cache_clear()
    yield
    capabilities.cache_clear()


Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution that registers an entry point `probe`: the module's CAPABILITY."""

    def made(module: str, text: str) -> None:
        (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / f"{module}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[busbar.capabilities]\nprobe = {module}:CAPABILITY\n")

    monkeypatch.syspath_prepend(tmp_path)
    return made


def test_every_folder_with_a_door_is_a_capability_of_its_name() -> None:
    doors = {door.parent.name for door in capability.FOLDER.glob("*/capability.py")}
    assert {each.name for each in capabilities()} == doors


def test_each_names_functions_and_modules_that_exist() -> None:
    for each in capabilities():
        for named in filter(None, (*each.steps.values(), *(getattr(each, name) for name in USES))):
            assert pkgutil.resolve_name(named), f"{each.name}: {named}"


def test_the_core_names_none_of_them() -> None:
    names = "|".join(door.parent.name for door in capability.FOLDER.glob("*/capability.py"))
    named = re.compile(rf"(stacks[/.]|busbar |make up-)({names})\b")
    files = [PROJECT / "__main__.py"]
    for folder in ("busbar", "components", "host", "helm_values", "charts"):
        files += [path for path in (PROJECT / folder).rglob("*") if path.is_file()]
    # Fonts are not text, and pages may name capabilities.
    texts = {
        path: path.read_text(encoding="utf-8", errors="replace")
        for path in files
        if "__pycache__" not in path.parts and path.suffix != ".md"
    }
    assert [path for path, text in texts.items() if named.search(text)] == []


def test_each_has_a_gate_of_its_own() -> None:
    gates = [CLUSTER_GATE, *(each.gate for each in capabilities() if each.gate)]
    assert [gate_of({gate.version: 1}) for gate in gates] == gates


def test_another_distribution_is_found_by_its_entry_point(install: Install) -> None:
    install("busbar_probe", DOOR.format(name="probe", module="busbar_probe"))
    assert "probe" in {each.name for each in capabilities()}
    gate = gate_of({"probe_version": 1})
    assert gate is not None and gate.title == "probe failed"
    # Its module has no commands for people.
    assert build().commands["probe"].hidden


def test_one_of_commands_only_needs_no_gate_and_no_schema(install: Install) -> None:
    text = """
from busbar.capability import Capability
CAPABILITY = Capability(name="probe", help="", commands="busbar_looks")
def register(group):
    group.command("look")(lambda: "seen")
    group.command("again")(lambda: None)
"""
    install("busbar_looks", text)
    assert build().commands["probe"].commands["look"].callback() == "seen"
    assert gate_of({"probe_version": 1}) is None


def test_what_a_capability_says_of_nodes_is_that_of_its_function(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
from busbar.capability import Capability
CAPABILITY = Capability(name="probe", help="", commands="busbar_says", nodes="busbar_says:nodes")
def nodes(api):
    return {"gpu-1": f"drained in {api}"}
"""
    install("busbar_says", text)
    monkeypatch.setattr(capability, "FOLDER", tmp_path)
    assert capability.node_states("X") == {"gpu-1": "drained in X"}


def test_an_error_of_one_that_is_told_of_a_change_is_a_warning_with_its_command(install: Install) -> None:
    text = """
from busbar.capability import Capability
CAPABILITY = Capability(
    name="probe", help="", commands="busbar_told", changed="busbar_told:changed", repeat="busbar probe again"
)
def changed(api, outputs):
    raise KeyError(f"{api} {outputs}")
"""
    install("busbar_told", text)
    said: list[str] = []
    capability.notify(lambda: "API", said.append, {"a": 1})
    [warning] = [each for each in said if "probe" in each]
    assert warning == (
        "warning: stacks/probe, where it is installed, does not show this change: \"API {'a': 1}\". "
        "Fix: run `busbar probe again`"
    )


@pytest.mark.parametrize(
    ("module", "text", "error", "message"),
    [
        ("no_door", "CAPABILITY = 1", TypeError, "no_door:CAPABILITY is not a Capability but int"),
        ("other_name", DOOR, ValueError, "has the name 'other', expected 'probe', once"),
    ],
)
def test_a_door_that_is_not_as_it_must_be_is_refused(
    install: Install, module: str, text: str, error: type[Exception], message: str
) -> None:
    install(module, text.format(name="other", module=module))
    with pytest.raises(error, match=message):
        capabilities()


def test_a_name_is_given_once(install: Install) -> None:
    for module in ("busbar_one", "busbar_two"):
        install(module, DOOR.format(name="probe", module=module))
    with pytest.raises(ValueError, match="has the name 'probe', expected 'probe', once"):
        capabilities()
