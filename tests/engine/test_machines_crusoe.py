"""machines/crusoe on the real engine, with a replacement of Pulumi's bridge to Terraform providers."""

import json
import os
import re
from pathlib import Path

import jsonschema
import pytest

from busbar.config.stackfile import hosts_schema
from tests.program.test_machines_crusoe import MACHINES
from tests.support.engine import PROJECT, Project, throwaway_project

PROGRAM = (PROJECT / "machines" / "crusoe" / "__main__.py").read_text(encoding="utf-8")
PLUGINS = PROJECT / "lab" / "offline" / "plugins" / "bin"


@pytest.fixture
def machines(tmp_path: Path) -> Project:
    """An empty stack of the program with 16 GPU machines in its configuration."""
    environment = dict(throwaway_project(tmp_path, PROGRAM))
    environment["PATH"] = os.pathsep.join([str(PLUGINS), environment["PATH"]])
    made = Project(tmp_path, environment)
    assert made.pulumi("stack", "init")[0] == 0
    file = tmp_path / "Pulumi.dev.yaml"
    config = json.dumps({"tiny:machines": {**MACHINES, "gpu_count": 16}})
    file.write_text(f"{file.read_text()}config: {config}\n")
    return made


def test_machines_are_made_once_exported_as_hosts_and_protected(machines: Project) -> None:
    code, text = machines.pulumi("up", "--yes", "--skip-preview")
    assert code == 0, text
    code, text = machines.pulumi("stack", "output", "hosts", "--json")
    listed = json.loads(text)
    jsonschema.validate(listed, hosts_schema())
    assert len({host["host_key"] for host in listed["hosts"]}) == 20
    code, text = machines.pulumi("up", "--yes", "--skip-preview")
    # The stack, 20 machines, as many host keys, network, subnet, two rules and the partition; nothing else.
    assert code == 0 and re.search(r"Resources:\n +46 unchanged\n", text), text
    code, text = machines.pulumi("destroy", "--yes", "--skip-preview")
    assert code != 0 and "protect" in text, text
    assert json.loads(machines.pulumi("stack", "output", "hosts", "--json")[1]) == listed


def test_a_misspelt_property_is_refused_before_anything_is_made(machines: Project) -> None:
    (machines.folder / "__main__.py").write_text(PROGRAM.replace("sshKey=", "sshKye="))
    code, text = machines.pulumi("preview")
    assert code != 0 and re.search("property sshKye .* is not an argument of this resource", text), text
