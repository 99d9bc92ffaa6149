"""Commands on hosts, given a stack of a capability: they serve it, or say what it is and what to type."""

import json
import tarfile
from pathlib import Path

import pytest

from busbar.capability import FOLDER, Capability, capabilities
from busbar.config.stackfile import EXAMPLE
from tests.support.cli import busbar

ON_HOSTS = ["preflight {}", "nodes {}", "images {}", "measure {}", "history {}"]
ON_HOSTS += ["hosts keys {}", "drain {} gpu-1", "uncordon {} gpu-1", "diagnose {}"]
OF_MEASUREMENTS = ("measure", "history")
OF_K3S = ("snapshots {}", "restore {} --snapshot x")
WITH_HOSTS = [each for each in capabilities() if each.operations]
WITHOUT = [each for each in capabilities() if each.config and not each.operations]


def name(capability: Capability) -> str:
    return capability.name


def example(folder: Path, capability: Capability) -> str:
    """The example of the capability as the file of a stack, in a folder without a project."""
    path = folder / "Pulumi.mine.yaml"
    path.write_text((FOLDER / capability.name / EXAMPLE).read_text())
    return str(path)


@pytest.mark.parametrize("words", [*ON_HOSTS, *OF_K3S])
@pytest.mark.parametrize("capability", WITHOUT, ids=name)
def test_a_stack_without_hosts_has_own_commands(words: str, capability: Capability, tmp_path: Path) -> None:
    if capability.measure and words.split()[0] in OF_MEASUREMENTS:
        pytest.skip("it serves them")
    done = busbar(*words.format(example(tmp_path, capability)).split())
    assert done.exit_code == 64, done.output
    said = f"error: Pulumi.mine.yaml is a stack of {capability.project}, which has no hosts of"
    assert done.stderr.startswith(said)
    assert "Fix: name the stack of its cluster; for this one: busbar status mine" in done.stderr
    assert capability.gate is not None and capability.gate.raised in done.stderr


@pytest.mark.parametrize("words", OF_K3S)
@pytest.mark.parametrize("capability", WITH_HOSTS, ids=name)
def test_what_only_a_k3s_cluster_has_is_said_so(words: str, capability: Capability, tmp_path: Path) -> None:
    done = busbar(*words.format(example(tmp_path, capability)).split())
    assert done.exit_code == 64, done.output
    assert f"is a stack of {capability.project}, and this command is for a K3s cluster" in done.stderr
    assert "Fix: busbar docs operations 'Commands and projects'" in done.stderr
    section = busbar("docs", "operations", "Commands and projects").stdout
    assert f"`{words.split()[0]}`" in section


@pytest.mark.parametrize("capability", [*WITH_HOSTS, *WITHOUT], ids=name)
def test_a_support_bundle_is_made_for_any_project(capability: Capability, tmp_path: Path) -> None:
    target = tmp_path / "b.tar.gz"
    done = busbar("support-bundle", example(tmp_path, capability), "-o", str(target))
    assert done.exit_code == 0, done.output
    with tarfile.open(target) as tar:
        preflight = tar.extractfile("b/preflight.json")
        assert preflight
        hosts = json.loads(preflight.read())
    assert ("has no hosts of its own" in hosts["error"]) is (capability in WITHOUT)
