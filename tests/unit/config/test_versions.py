"""What is known of combinations of versions."""

from __future__ import annotations

import pytest

from busbar import versions
from busbar.config import advice, load
from tests.support.clusters import site


def test_the_default_versions_are_a_known_set_without_a_word_against_it() -> None:
    defaults = (versions.K3S, versions.GPU_OPERATOR, versions.NETWORK_OPERATOR)
    assert versions.judge(*defaults) == []
    found = versions.set_of(*defaults)
    assert found is not None
    assert found.name == "B"


@pytest.mark.parametrize(
    ("k3s", "gpu_operator", "network_operator", "level", "text"),
    [
        ("v1.35.6+k3s1", "v26.3.2", "26.4.0", "error", "have no GPUDirect RDMA together"),
        ("v1.31.8+k3s1", "v26.3.3", "26.1.2", "error", "does not read the AuthenticationConfiguration"),
        ("v1.32.4+k3s1", "v26.3.3", "26.1.2", "error", "does not read the AuthenticationConfiguration"),
        ("v1.33.0+k3s1", "v26.3.3", "26.1.2", "error", "does not read the AuthenticationConfiguration"),
        ("v1.35.6+k3s1", "v26.3.1", "26.1.2", "warning", "shows all ibverbs devices to every GPU pod"),
        ("v1.35.6+k3s1", "v25.10.0", "26.1.2", "warning", "does not support K3s"),
        (
            "v1.36.5+k3s1",
            "v26.3.3",
            "26.1.2",
            "warning",
            "Network Operator 26.1.2 is for Kubernetes 1.31 to 1.35",
        ),
        (
            "v1.32.9+k3s1",
            "v26.7.0",
            "26.7.0",
            "warning",
            "GPU Operator v26.7.0 is for Kubernetes 1.33 to 1.36",
        ),
        ("v1.35.6+k3s1", "v26.7.1", "26.1.2", "warning", "this combination is in no known set"),
    ],
)
def test_a_combination_with_a_known_fault_is_named(
    k3s: str, gpu_operator: str, network_operator: str, level: str, text: str
) -> None:
    found = [f for f in versions.judge(k3s, gpu_operator, network_operator) if text in f.text]
    assert [finding.level for finding in found] == [level]


@pytest.mark.parametrize("version", ["v1.31.9+k3s1", "v1.32.5+k3s1", "v1.33.1+k3s1", "v1.34.0+k3s1"])
def test_the_first_releases_that_can_open_readyz_are_accepted(version: str) -> None:
    assert all(finding.level == "warning" for finding in versions.judge(version, "v26.3.3", "26.1.2"))


def test_an_operator_that_is_not_installed_does_not_count() -> None:
    assert versions.judge("v1.35.6+k3s1", "v26.3.2", None) != []
    assert versions.judge("v1.35.6+k3s1", None, "26.4.0") == []


@pytest.mark.parametrize(
    ("text", "number"),
    [("v1.35.6+k3s1", (1, 35, 6)), ("26.7.0-rc.2", (26, 7, 0)), ("v26.7", (26, 7)), ("latest", None)],
)
def test_versions_are_compared_by_their_numbers(text: str, number: tuple[int, ...] | None) -> None:
    assert versions.number(text) == number


def test_a_set_outside_the_table_is_allowed_with_a_note() -> None:
    cluster = load(site(network_operator={"version": "26.4.1"}))
    assert [note.split(": ")[0] for note in advice(cluster)] == ["versions"]


def test_what_proves_little_is_said_beforehand() -> None:
    notes = advice(load(site(servers=1, workers={"h100": 1})))
    assert [note.split(": ")[0] for note in notes] == ["hosts.workers", "hosts.servers"]
