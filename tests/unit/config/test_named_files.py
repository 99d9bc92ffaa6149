"""The files that a configuration names are looked at before anything is created."""

from __future__ import annotations

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


def test_a_relative_path_starts_at_the_project_folder(tmp_path: Path) -> None:
    assert resolve(tmp_path, "keys/id") == tmp_path / "keys" / "id"
    assert resolve(tmp_path, "/keys/id") == Path("/keys/id")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert resolve(tmp_path, "~/id") == Path("/home/someone/id")


def test_a_configuration_that_names_no_file_has_no_finding(tmp_path: Path) -> None:
    assert found(tmp_path) == []


@pytest.mark.parametrize("operator", CHARTS)
def test_a_local_chart_must_be_there(tmp_path: Path, operator: str) -> None:
    own = {"enabled": True, "chart": "./charts/own"}
    [finding] = found(tmp_path, **{operator: own})
    assert finding.startswith(f"{operator}.chart: './charts/own'")
    (tmp_path / "charts" / "own").mkdir(parents=True)
    assert found(tmp_path, **{operator: own}) == []


@pytest.mark.parametrize("operator", CHARTS)
def test_the_chart_of_an_operator_that_is_not_installed_may_be_missing(tmp_path: Path, operator: str) -> None:
    disabled = {operator: {"chart": "./charts/own", "enabled": False}}
    assert found(tmp_path, **{"network_operator": OWN_NFD, **disabled}) == []


def test_a_chart_of_a_repository_is_not_looked_for_on_this_machine(tmp_path: Path) -> None:
    assert found(tmp_path, gpu_operator={"chart": "oci://registry.example.com/gpu-operator"}) == []


def test_the_private_half_of_a_key_is_accepted_and_the_public_half_is_not(tmp_path: Path) -> None:
    (tmp_path / "id").write_text(PRIVATE_KEY)
    assert found(tmp_path, ssh={"key_file": "id"}) == []
    for public in ("ssh-ed25519 AAAA someone\n", "-----BEGIN PUBLIC KEY-----\nAAAA\n"):
        (tmp_path / "id").write_text(public)
        [finding] = found(tmp_path, ssh={"key_file": "id"})
        assert finding.startswith("ssh.key_file: 'id'")


def test_a_key_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    [finding] = found(tmp_path, ssh={"key_file": "missing"})
    assert finding.startswith("ssh.key_file: 'missing'")
    assert "No such file or directory" in finding


def test_a_topology_is_a_file_with_a_system_element(tmp_path: Path) -> None:
    assert topology(tmp_path, "topo.xml", TOPOLOGY) == []
    [finding] = topology(tmp_path, "topo.xml", "<graphs/>")
    assert "<system>" in finding


def test_a_topology_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    [finding] = topology(tmp_path, "topo.xml", TOPOLOGY[:-4])
    assert "is not XML" in finding and finding.endswith("from its source: xmllint --noout FILE")


def test_a_topology_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    [finding] = found(tmp_path, validation={"topology_file": "missing.xml"})
    assert finding.startswith("validation.topology_file: 'missing.xml'")
    assert "No such file or directory" in finding


@pytest.mark.parametrize("name", ["my topology.xml", "topo+1.xml"])
def test_a_topology_needs_a_name_that_a_config_map_can_hold(tmp_path: Path, name: str) -> None:
    [finding] = topology(tmp_path, name, TOPOLOGY)
    assert "ConfigMap" in finding


def test_a_topology_of_a_million_bytes_fits_into_a_config_map_and_one_more_does_not(tmp_path: Path) -> None:
    assert topology(tmp_path, "topo.xml", TOPOLOGY.ljust(1_000_000)) == []
    [finding] = topology(tmp_path, "topo.xml", TOPOLOGY.ljust(1_000_001))
    assert "1000001 bytes" in finding
