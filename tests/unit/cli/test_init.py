"""`busbar init`: what keeps it from writing a site; what it writes: tests/engine/test_site.py."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import Result

from busbar.capability import capabilities
from busbar.config.stackfile import EXAMPLE, PROJECT
from tests.support.cli import busbar


def init(*words: str) -> Result:
    return busbar("init", *words)


def test_a_site_is_written_once_and_no_file_of_it_again(tmp_path: Path) -> None:
    assert init(str(tmp_path / "site")).exit_code == 0
    (tmp_path / "site" / "Pulumi.yaml").write_text("mine")
    again = init(str(tmp_path / "site"))
    assert again.exit_code == 64
    assert "has Pulumi.yaml, __main__.py, " in again.stderr and "Fix: name another folder" in again.stderr
    assert (tmp_path / "site" / "Pulumi.yaml").read_text() == "mine"


def test_a_wheel_that_is_in_the_site_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "busbar.whl").write_text("mine")
    monkeypatch.setattr("busbar.release.wheel", lambda: tmp_path / "busbar.whl")
    monkeypatch.setattr("busbar.release.requirements", lambda: [])
    done = init(str(tmp_path))
    assert (done.exit_code, done.stderr, (tmp_path / "busbar.whl").read_text()) == (0, "", "mine")


def test_a_site_keeps_its_kubeconfig_out_of_git_and_has_the_project_of_busbar(tmp_path: Path) -> None:
    assert init(str(tmp_path)).exit_code == 0
    ignored = (tmp_path / ".gitignore").read_text().split()
    assert ignored == [".venv/", ".busbar/", "__pycache__/", "busbar-support-*.tar.gz"]
    project = yaml.safe_load((tmp_path / "Pulumi.yaml").read_text())
    assert (project["name"], project["runtime"]["options"]) == (PROJECT, {"virtualenv": ".venv"})
    example = yaml.safe_load((tmp_path / EXAMPLE).read_text())["config"]["busbar:cluster"]
    assert (example["validation"]["enforce"], example["ssh"]["agent"]) == (True, True)


def test_a_folder_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = init(str(tmp_path / "file" / "site"))
    assert done.exit_code == 64
    assert "/file/site/Pulumi.yaml cannot be written: Not a directory" in done.stderr


def test_an_unknown_capability_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    done = init(str(tmp_path / "site"), "--capability", "nosuch")
    assert (done.exit_code, (tmp_path / "site").exists()) == (64, False)
    assert done.stderr.startswith("error: --capability nosuch: expected one of ")


@pytest.mark.parametrize("name", [each.name for each in capabilities() if each.config])
def test_a_capability_has_a_valid_example_with_the_schema_beside_it(name: str, tmp_path: Path) -> None:
    assert init(str(tmp_path), "--capability", name).exit_code == 0
    example, schema = tmp_path / name / EXAMPLE, tmp_path / name / "schema.json"
    assert example.read_text().startswith("# yaml-language-server: $schema=schema.json\n")
    jsonschema.validate(yaml.safe_load(example.read_text()), json.loads(schema.read_text()))
    project = yaml.safe_load((tmp_path / name / "Pulumi.yaml").read_text())
    assert project["runtime"]["options"] == {"virtualenv": "../.venv"}, "that of the site"
    done = busbar("check-config", str(example))
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"OK  {EXAMPLE}")
