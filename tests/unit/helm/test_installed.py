"""Whether releases and namespaces are on the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.helm.releases import await_kinds, deployed_version, encode, missing
from busbar.kube.client import ApiError
from busbar.manifests.operators import NETWORK_OPERATOR
from tests.support.kube_cluster import Clock, Cluster, unreachable

RELEASE = ("gpu-operator", "gpu-operator")
SECRETS = "/api/v1/namespaces/gpu-operator/secrets"
OWN = "/api/v1/namespaces/nccl-validation"
AGAIN = "Fix: it is installed again by: busbar up STACK --converge cluster"


class Counting(Cluster):
    """Answers a list of Secrets with those that the selector asks for."""

    def __init__(self, objects: dict[str, Any]) -> None:
        super().__init__(objects)
        self.asked: list[str] = []

    def get(self, path: str, **query: str) -> dict[str, Any]:
        self.asked.append(path)
        return super().get(path, **query)

    def list(self, path: str, **query: str) -> list[dict[str, Any]]:
        self.asked.append(path)
        wanted = dict(each.split("=") for each in query["labelSelector"].split(","))
        return [each for each in super().list(path) if wanted.items() <= each["metadata"]["labels"].items()]


def secret(status: str, name: str = "gpu-operator", revision: int = 1) -> dict[str, Any]:
    labels = {"owner": "helm", "name": name, "status": status, "version": str(revision)}
    return {"metadata": {"labels": labels}}


def test_a_deployed_release_is_there_and_one_request_says_so() -> None:
    api = Counting({SECRETS: [secret("superseded"), secret("deployed")]})
    assert missing(api, {(*RELEASE, 1), ("gpu-operator", None, None)}) == []
    assert api.asked == [SECRETS]


@pytest.mark.parametrize("secrets", [[], [secret("uninstalling")], [secret("deployed", "another")]])
def test_a_release_without_a_deployed_revision_is_missing(secrets: list[dict[str, Any]]) -> None:
    [found] = missing(Counting({SECRETS: secrets}), [(*RELEASE, 1)])
    assert found == f"Helm release gpu-operator/gpu-operator is not on the cluster. {AGAIN}"


@pytest.mark.parametrize(
    ("expected", "back"), [(1, "helm rollback gpu-operator 1 -n gpu-operator, then: "), (3, "busbar up")]
)
def test_a_revision_that_somebody_else_has_deployed_is_not_that_of_the_stack(
    expected: int, back: str
) -> None:
    """Neither the engine nor its refresh sees other values, and the outputs name the former version."""
    [found] = missing(Counting({SECRETS: [secret("deployed", revision=2)]}), [(*RELEASE, expected)])
    assert f"is at revision 2, expected {expected}: this stack has not installed it. Fix: {back}" in found
    assert found.endswith("busbar up STACK --refresh")


@pytest.mark.parametrize("objects", [{}, {OWN: {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}}])
def test_a_namespace_that_is_gone_or_being_deleted_is_missing(objects: dict[str, Any]) -> None:
    [found] = missing(Counting(objects), [("nccl-validation", None, None)])
    assert found == f"namespace nccl-validation is not on the cluster. {AGAIN}"


def test_a_namespace_that_is_there_is_not_missing() -> None:
    assert missing(Counting({OWN: {"metadata": {}}}), [("nccl-validation", None, None)]) == []


def test_an_error_of_the_api_is_no_absence() -> None:
    api = Counting({})
    api.failures = [unreachable()]
    with pytest.raises(ApiError):
        missing(api, [("nccl-validation", None, None)])


def deployed(*charts: str, status: str = "deployed") -> Counting:
    """Helm's records of a release, oldest first, each with the version of its chart."""
    records = [
        {
            "metadata": {
                "labels": {**secret(status, "network-operator")["metadata"]["labels"], "version": str(number)}
            },
            "data": {"release": encode({"chart": {"metadata": {"version": version}}})},
        }
        for number, version in enumerate(charts, 9)
    ]
    return Counting({NETWORK_SECRETS: records})


NETWORK_SECRETS = "/api/v1/namespaces/nvidia-network-operator/secrets"


def skipped(api: Cluster, wanted: str) -> str | None:
    installed = deployed_version(api, NETWORK_OPERATOR.namespace, NETWORK_OPERATOR.release)
    found = NETWORK_OPERATOR.skipped_releases(installed, wanted)
    return str(found) if found else None


def test_an_upgrade_over_major_releases_is_named_with_those_between() -> None:
    assert skipped(deployed("26.1.0", "26.1.2"), "26.10.0") == (
        "network_operator.version: '26.10.0' cannot follow 26.1.2, which is installed: only an upgrade to "
        "the next major release is supported, and 26.4.2 and 26.7.0 would be left out. "
        "Fix: upgrade to 26.4.2, then to 26.7.0 first, each with: busbar up STACK"
    )


@pytest.mark.parametrize("api", [deployed(), deployed("26.1.2", status="failed")])
def test_what_was_never_deployed_is_not_upgraded(api: Counting) -> None:
    assert skipped(api, "26.10.0") is None


KINDS = {("Prometheus", "monitoring.coreos.com/v1"), ("Alertmanager", "monitoring.coreos.com/v1")}


def servers(*known_at: float) -> tuple[Clock, Any]:
    """A clock, and what connects to API servers in turn, which know the kinds from these seconds on."""
    clock, connections = Clock(), iter(known_at * 100)

    def connect() -> Cluster:
        is_known = clock.now() >= next(connections)
        resources = [{"kind": kind} for kind, _ in KINDS]
        return Cluster({"/apis/monitoring.coreos.com/v1": {"resources": resources}} if is_known else {})

    return clock, connect


def test_kinds_are_awaited_until_the_last_server_knows_them() -> None:
    clock, connect = servers(0, 4, 9)
    assert await_kinds(connect, KINDS, clock)
    assert 9 <= clock.now() < 15


def test_kinds_that_a_server_does_not_come_to_know_are_not_awaited_for_ever() -> None:
    clock, connect = servers(0, 0, 1e9)
    assert not await_kinds(connect, KINDS, clock)
    assert clock.now() < 40
