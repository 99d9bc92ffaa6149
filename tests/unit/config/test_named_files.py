"""The files that a configuration names are looked at before anything is created."""

from pathlib import Path
from typing import Any

import pytest

from busbar.config import Chart, load
from busbar.config.files import resolve, unusable
from tests.support.clusters import OWN_NFD, site

PRIVATE_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n"
CHARTS = [key for key, section in load(site()) if isinstance(section, Chart)]
TOPOLOGY = '<system version="1"></system>'


def found(root: Path, **sections: Any) -> list[str]:
    return [*map(str, unusable(load(site(**sections)), root))]


def topology(root: Path, name: str, text: str) -> list[str]:
    (root / name).write_text(text)
    return found(root, validation={"topology_file": name})


@pytest.mark.parametrize(
    ("given", "path"), [("keys/id", "/site/keys/id"), ("/keys/id", "/keys/id"), ("~/id", "/home/someone/id")]
)
def test_a_path_starts_at_the_project_folder(monkeypatch: pytest.MonkeyPatch, given: str, path: str) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert resolve(Path("/site"), given) == Path(path)


@pytest.mark.parametrize("operator", CHARTS)
def test_a_local_chart_must_be_there(tmp_path: Path, operator: str) -> None:
    own = {"enabled": True, "chart": "./charts/own"}
    [finding] = found(tmp_path, **{operator: own})
    assert finding.startswith(f"{operator}.chart: './charts/own'")
    (tmp_path / "charts" / "own").mkdir(parents=True)
    assert found(tmp_path, **{operator: own}) == []
    of_repository = {"enabled": True, "chart": "oci://registry.example.com/own"}
    assert found(tmp_path, **{operator: of_repository}) == []


@pytest.mark.parametrize("operator", CHARTS)
def test_the_chart_of_an_operator_that_is_not_installed_may_be_missing(tmp_path: Path, operator: str) -> None:
    disabled = {operator: {"chart": "./charts/own", "enabled": False}}
    assert found(tmp_path, **{"network_operator": OWN_NFD, **disabled}) == []


def test_the_private_half_of_a_key_is_accepted_and_the_public_half_is_not(tmp_path: Path) -> None:
    (tmp_path / "id").write_text(PRIVATE_KEY)
    assert found(tmp_path, ssh={"key_file": "id"}) == []
    for public in ("ssh-ed25519 AAAA someone\n", "-----BEGIN PUBLIC KEY-----\nAAAA\n"):
        (tmp_path / "id").write_text(public)
        [finding] = found(tmp_path, ssh={"key_file": "id"})
        assert finding.startswith("ssh.key_file: 'id'")


@pytest.mark.parametrize("key", ["ssh.key_file", "validation.topology_file"])
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path, key: str) -> None:
    section, _, name = key.partition(".")
    [finding] = found(tmp_path, **{section: {name: "missing.xml"}})
    assert finding.startswith(f"{key}: 'missing.xml'") and "No such file or directory" in finding


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("topo.xml", "<graphs/>", "<system>"),
        ("topo.xml", TOPOLOGY[:-4], "is not XML"),
        ("my topology.xml", TOPOLOGY, "ConfigMap"),
        ("topo+1.xml", TOPOLOGY, "ConfigMap"),
        ("topo.xml", TOPOLOGY.ljust(1_000_001), "1000001 bytes"),
    ],
)
def test_a_topology_is_xml_that_fits_a_config_map(tmp_path: Path, name: str, text: str, says: str) -> None:
    assert topology(tmp_path, "ok.xml", TOPOLOGY.ljust(1_000_000)) == []
    [finding] = topology(tmp_path, name, text)
    assert says in finding and finding.startswith(f"validation.topology_file: '{name}'")
