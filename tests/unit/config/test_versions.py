"""What is known about combinations of versions."""

from __future__ import annotations

import pytest
from packaging.version import Version

from busbar import versions
from busbar.cli.config import describe
from busbar.config import load, warnings
from busbar.config.partial import PartialConfig
from busbar.config.software_checks import version_findings
from tests.support.clusters import site


def test_the_default_versions_are_a_known_set_without_findings() -> None:
    defaults = (versions.K3S, versions.GPU_OPERATOR, versions.NETWORK_OPERATOR)
    assert versions.check_combination(*defaults) == []
    found = versions.known_set(*defaults)
    assert found is not None
    assert found.name == "B"


def test_check_config_names_no_version_of_an_operator_that_is_not_installed() -> None:
    [line] = [each for each in describe(load(site(network_operator={"enabled": False}))) if "K3s " in each]
    assert line == f"K3s {versions.K3S}, GPU Operator {versions.GPU_OPERATOR}, no Network Operator"


@pytest.mark.parametrize(
    ("k3s", "gpu_operator", "network_operator", "level", "text"),
    [
        ("v1.35.6+k3s1", "v26.3.2", "26.4.0", "error", "do not support GPUDirect RDMA together"),
        ("v1.31.8+k3s1", "v26.3.3", "26.1.2", "error", "does not read the AuthenticationConfiguration"),
        ("v1.32.4+k3s1", "v26.3.3", "26.1.2", "error", "does not read the AuthenticationConfiguration"),
        ("v1.33.0+k3s1", "v26.3.3", "26.1.2", "error", "does not read the AuthenticationConfiguration"),
        ("v1.35.6+k3s1", "v26.3.1", "26.1.2", "warning", "exposes all ibverbs devices to every GPU pod"),
        ("v1.35.6+k3s1", "v25.10.0", "26.1.2", "warning", "does not support K3s"),
        (
            "v1.36.5+k3s1",
            "v26.3.3",
            "26.1.2",
            "warning",
            "Network Operator 26.1.2 supports Kubernetes >=1.31, <1.36, got K3s v1.36.5+k3s1",
        ),
        (
            "v1.32.9+k3s1",
            "v26.7.0",
            "26.7.0",
            "warning",
            "GPU Operator v26.7.0 supports Kubernetes >=1.33, <1.37, got K3s v1.32.9+k3s1",
        ),
        ("v1.35.6+k3s1", "v26.7.1", "26.1.2", "warning", "this combination is not in a known set"),
    ],
)
def test_a_combination_with_a_known_fault_is_named(
    k3s: str, gpu_operator: str, network_operator: str, level: str, text: str
) -> None:
    found = [f for f in versions.check_combination(k3s, gpu_operator, network_operator) if text in f.text]
    assert [finding.level for finding in found] == [level]


@pytest.mark.parametrize("version", ["v1.31.9+k3s1", "v1.32.5+k3s1", "v1.33.1+k3s1", "v1.34.0+k3s1"])
def test_the_first_releases_that_can_open_readyz_are_accepted(version: str) -> None:
    assert all(
        finding.level == "warning" for finding in versions.check_combination(version, "v26.3.3", "26.1.2")
    )


def test_an_operator_that_is_not_installed_is_not_checked() -> None:
    assert versions.check_combination("v1.35.6+k3s1", "v26.3.2", None) != []
    assert versions.check_combination("v1.35.6+k3s1", None, "26.4.0") == []


@pytest.mark.parametrize(
    ("section", "version"), [("gpu_operator", "v26.3.2"), ("network_operator", "26.1.0")]
)
def test_the_version_of_an_operator_counts_only_where_it_is_installed(section: str, version: str) -> None:
    for enabled in (True, False):
        partial = PartialConfig.read({**site(), section: {"version": version, "enabled": enabled}})
        assert bool(version_findings(partial)) is enabled


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
    assert [note.path for note in warnings(cluster)] == [("versions",)]


def test_a_single_worker_and_a_single_server_are_warned_about() -> None:
    notes = warnings(load(site(servers=1, workers={"h100": 1})))
    assert [note.path for note in notes] == [("hosts", "workers"), ("hosts", "servers")]
