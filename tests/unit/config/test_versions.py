"""What is known about combinations of versions."""

import pytest
from packaging.version import Version

from busbar import versions
from busbar.cli.before import describe
from busbar.config import load, untested_versions, warnings
from tests.support.clusters import site
from tests.unit.config.edits import edited, findings


def test_the_default_versions_are_a_known_set_without_a_warning() -> None:
    found = versions.known_set(versions.K3S, versions.GPU_OPERATOR, versions.NETWORK_OPERATOR)
    assert found is not None and found.name == "B"
    assert [*untested_versions(load(site())), *warnings(load(site()))] == []


def test_check_config_names_no_version_of_an_operator_that_is_not_installed() -> None:
    [line] = [each for each in describe(load(site(network_operator={"enabled": False}))) if "K3s " in each]
    assert line == f"K3s {versions.K3S}, GPU Operator {versions.GPU_OPERATOR}, no Network Operator"


@pytest.mark.parametrize(
    ("refused", "accepted"),
    [("v1.30.9", "v1.31.9"), ("v1.31.8", "v1.32.5"), ("v1.32.4", "v1.33.1"), ("v1.33.0", "v1.34.0")],
)
def test_a_release_that_cannot_open_readyz_is_refused(refused: str, accepted: str) -> None:
    [said] = findings(edited({"k3s.version": f"{refused}+k3s1"}))
    assert said.startswith("k3s.version: ")
    load(edited({"k3s.version": f"{accepted}+k3s1"}))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("v1.35.6+k3s1", Version("1.35.6")),
        ("26.7.0-rc.2", Version("26.7.0")),
        ("v26.7", Version("26.7")),
        ("6.8.0-60-generic", Version("6.8.0")),
        ("latest", None),
    ],
)
def test_versions_are_compared_by_their_release_numbers(text: str, number: Version | None) -> None:
    assert versions.release(text) == number


def test_a_combination_outside_the_table_is_a_warning() -> None:
    cluster = load(site(network_operator={"version": "26.4.1"}))
    [found] = map(str, untested_versions(cluster))
    assert warnings(cluster) == [], "an update does not repeat it"
    assert found.startswith("versions: this combination of K3s, GPU Operator and Network Operator is in no ")


@pytest.mark.parametrize(
    ("installed", "wanted", "between"),
    [
        ("26.1.2", "26.10.0", ["26.4.2", "26.7.0"]),
        ("26.1.2", "26.7.0", ["26.4.2"]),
        ("26.7.0", "26.10.0", []),
        ("26.7.0-rc.2", "26.7.0", []),
        ("26.10.0", "26.1.2", []),
        ("0.1.0", "0.2.0", []),
        ("none", "26.10.0", []),
    ],
)
def test_major_releases_that_an_upgrade_leaves_out(installed: str, wanted: str, between: list[str]) -> None:
    assert versions.left_out(versions.NETWORK_OPERATOR_RELEASES, installed, wanted) == between


def test_versions_that_were_not_run_are_a_warning() -> None:
    gpu, network = {"version": "v26.7.2"}, {"version": "26.10.0"}
    found = [*map(str, untested_versions(load(site(gpu_operator=gpu, network_operator=network))))]
    where = ["versions", "gpu_operator.version", "network_operator.version"]
    assert [each.split(": ")[0] for each in found] == where
    assert found[1].startswith("gpu_operator.version: 'v26.7.2' was not run: its chart was not seen; ")
    assert found[2].endswith("Fix: use 26.7.0")
