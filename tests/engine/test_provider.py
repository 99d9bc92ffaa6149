"""`Cluster` in a program of another language: the engine runs the folder plugin/ of this checkout.

The language host that can be had here is older than plugins in a folder of a program: a script does what its
successors do by PulumiPlugin.yaml, `python FOLDER ENGINE`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from busbar.components.provider import Provider
from tests.support.camel import camel
from tests.support.clusters import refusing, site
from tests.support.engine import PROJECT, throwaway_project
from tests.support.host_lists import from_list, host_list

PROGRAM = """
import json
import pulumi

class Cluster(pulumi.ComponentResource):
    def __init__(self, name, args):
        super().__init__("busbar:index:Cluster", name, {**args, "ncclPassed": None}, None, remote=True)

made = Cluster("mine", json.load(open("arguments.json")))
pulumi.export("passed", made.ncclPassed)
"""


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_program_of_another_language_brings_a_cluster_up_to_the_first_refused_connection(
    tmp_path: Path, is_listed: bool
) -> None:
    variables = throwaway_project(tmp_path, PROGRAM)
    project = tmp_path / "Pulumi.yaml"
    plugin = tmp_path / "plugin/pulumi-resource-busbar"
    plugin.parent.mkdir()
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} {PROJECT}/plugin "$@"\n')
    plugin.chmod(0o755)
    plugins = "plugins: {providers: [{name: busbar, path: plugin}]}\n"
    project.write_text(project.read_text() + plugins)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    schema = json.loads(Provider().schema or "")
    definition = schema["resources"]["busbar:index:Cluster"]["inputProperties"]["config"]
    given = refusing(site(ssh={"key_file": "key"}))
    if is_listed:
        (tmp_path / "hosts.json").write_text(json.dumps(host_list(given["hosts"])))
        given = from_list(given, file="hosts.json")
    cluster = camel(schema, given, definition)
    (tmp_path / "arguments.json").write_text(json.dumps({"config": cluster}))
    subprocess.run(["pulumi", "stack", "init", "one"], cwd=tmp_path, env=variables, check=True)
    done = subprocess.run(
        ["pulumi", "up", "--yes", "--skip-preview", "--non-interactive"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "lb-1: root@127.0.1.1" in said and "refuses the connection" in said, said
    exported = subprocess.run(
        ["pulumi", "stack", "export"], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True
    )
    resources = json.loads(exported.stdout)["deployment"]["resources"]
    assert "busbar:index:Cluster" in [each["type"] for each in resources]
    assert (tmp_path / ".busbar/python").read_text().splitlines()[1] == f'exec {sys.executable} "$@"'
