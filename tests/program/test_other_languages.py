"""What a program in another language gets: the outputs of a fabric that passed, or an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from busbar.components.engine import local_command
from busbar.components.provider import Provider
from tests.program.answers import healthy
from tests.program.harness import LOCAL, Run, run_program
from tests.support.camel import camel
from tests.support.clusters import site
from tests.support.verdicts import failing, passing

PROGRAM = """
import json
from pathlib import Path
import pulumi
from busbar.components.provider import Provider

async def main():
    given = json.loads(Path(__file__).with_name("arguments.json").read_text(), parse_int=float)
    made = Provider().construct("mine", "busbar:index:Cluster", given)
    for name in ("ncclPassed", "clusterName"):
        pulumi.export(name, made.state[name])

pulumi.run(main)
"""


def bring_up(folder: Path, verdict: Any) -> Run:
    schema = json.loads(Provider().schema or "")
    definition = schema["resources"]["busbar:index:Cluster"]["inputProperties"]["config"]
    cluster = site(ssh={"agent": True})
    (folder / "arguments.json").write_text(json.dumps({"config": camel(schema, cluster, definition)}))
    (folder / "__main__.py").write_text(PROGRAM)
    return run_program(cluster, healthy(cluster, verdict=lambda _: verdict), program=folder / "__main__.py")


@pytest.fixture(autouse=True)
def program_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_command, "interpreter", None)


def test_a_fabric_that_passed_gives_its_outputs(tmp_path: Path) -> None:
    done = bring_up(tmp_path, passing())
    assert done.error is None
    assert (done.outputs["ncclPassed"], done.outputs["clusterName"]) == (True, site()["name"])


def test_a_fabric_that_failed_gives_an_error_and_no_outputs(tmp_path: Path) -> None:
    done = bring_up(tmp_path, failing("GDRDMA is missing on 3 channels"))
    assert "GDRDMA is missing on 3 channels" in str(done.error)
    assert not [urn for urn in done.registered_outputs if "pulumi:pulumi:Stack::" in urn]


def test_commands_run_with_the_interpreter_of_the_plugin_wherever_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder/python").symlink_to("/bin/echo")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a folder/python"))
    bring_up(tmp_path, passing())
    assert subprocess.check_output([".busbar/python", "-m", "busbar"], text=True) == "-m busbar\n"


def test_commands_name_no_folder_of_this_release(tmp_path: Path) -> None:
    done = bring_up(tmp_path, passing())
    commands = [
        str(text)
        for each in done.resources.values()
        if each.type == LOCAL
        for text in (each.inputs.get("create"), each.inputs.get("update"), each.inputs.get("delete"))
        if "-m busbar" in str(text)
    ]
    assert commands and all("./.busbar/python -m busbar" in each for each in commands), commands
