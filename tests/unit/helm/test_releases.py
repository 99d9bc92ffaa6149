"""Helm's records: which are repaired after a killed update, and what they say is on the cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from busbar.helm.releases import (
    await_kinds,
    before_install,
    before_upgrade,
    decode,
    deployed_version,
    encode,
    missing,
    statuses,
)
from busbar.kube.client import ApiError
from busbar.manifests.operators import NETWORK_OPERATOR
from tests.support.kube_cluster import Clock, Cluster, unreachable

RELEASE = ("gpu-operator", "gpu-operator")
SECRETS = "/api/v1/namespaces/gpu-operator/secrets"
NETWORK_SECRETS = "/api/v1/namespaces/nvidia-network-operator/secrets"
OWN = "/api/v1/namespaces/nccl-validation"
BEGUN = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
VALUES = {"driver": {"enabled": True, "version": "580"}, "replicas": 8}


def record(revision: int, status: str, name: str = "gpu-operator", **more: Any) -> dict[str, Any]:
    info = {"status": status, "description": "Initial install underway"}
    body = {"name": name, "version": revision, "info": info, "config": VALUES, **more}
    return {
        "metadata": {
            "name": f"sh.helm.release.v1.{name}.v{revision}",
            "namespace": "gpu-operator",
            "uid": f"uid-{revision}",
            "resourceVersion": f"{revision}00",
            "creationTimestamp": BEGUN.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "labels": {"owner": "helm", "name": name, "status": status, "version": str(revision)},
        },
        "data": {"release": encode(body)},
    }


def later(seconds: float, clock: Clock) -> Any:
    """Now, `seconds` after the records were begun and as much more as has been waited."""
    return lambda: BEGUN + timedelta(seconds=seconds + clock.now())


def install(api: Cluster, clock: Clock | None = None, age: float = 3600) -> str | None:
    clock = clock or Clock()
    return before_install(api, "gpu-operator", "gpu-operator", clock, later(age, clock))


def upgrade(api: Cluster, clock: Clock | None = None, age: float = 3600) -> str | None:
    clock = clock or Clock()
    return before_upgrade(api, "gpu-operator", "gpu-operator", clock, later(age, clock))


def test_where_helm_knows_no_such_release_nothing_happens() -> None:
    api = Cluster({SECRETS: []})
    assert install(api) is None
    assert api.deleted == []


@pytest.mark.parametrize("status", ["pending-install", "failed", "deployed", "uninstalling"])
def test_the_record_of_an_interrupted_installation_of_ours_goes(status: str) -> None:
    api = Cluster({SECRETS: [record(1, status)]})
    said = install(api)
    same = {"uid": "uid-1", "resourceVersion": "100"}
    assert api.deleted == [(f"{SECRETS}/sh.helm.release.v1.gpu-operator.v1", same)]
    assert f"revision 1, {status} since 2026-05-01 12:00:00 UTC" in str(said)


def test_the_newest_of_several_records_goes_last() -> None:
    api = Cluster({SECRETS: [record(10, "deployed"), record(9, "superseded")]})
    install(api)
    assert [query["uid"] for _, query in api.deleted] == ["uid-9", "uid-10"]


def test_a_young_pending_installation_may_still_be_finished_by_the_plugin_that_outlived_its_engine() -> None:
    clock = Clock()
    api = Cluster({SECRETS: [record(1, "pending-install")]})
    clock.at(10, lambda: api.objects.update({SECRETS: [record(1, "deployed")]}))
    said = install(api, clock, age=5)
    assert 10 <= clock.time < 13
    assert "deployed" in str(said)


def test_a_pending_installation_that_nobody_finishes_is_waited_for_until_it_is_old_by_our_clock() -> None:
    clock = Clock()
    api = Cluster({SECRETS: [record(1, "pending-install")]})
    install(api, clock, age=5)
    assert 25 <= clock.time < 28
    assert len(api.deleted) == 1
    clock = Clock()
    install(Cluster({SECRETS: [record(1, "pending-install")]}), clock, age=-3600)
    assert clock.time == 30


def test_a_record_that_changes_underneath_is_looked_at_again() -> None:
    clock = Clock()
    api = Cluster({SECRETS: [record(1, "pending-upgrade")]})
    api.failures = [None, ApiError("PATCH", 409, "the object has been modified")]
    clock.at(1, lambda: api.objects.update({SECRETS: [record(1, "deployed")]}))
    assert upgrade(api, clock) is None
    assert api.patched == []


def test_an_api_that_is_away_is_asked_again_for_a_minute() -> None:
    api = Cluster({SECRETS: [record(1, "failed")]})
    api.failures = [unreachable(), ApiError("GET", 503, "starting")]
    install(api)
    assert len(api.deleted) == 1
    clock = Clock()
    api = Cluster()
    api.failures = [unreachable() for _ in range(100)]
    with pytest.raises(ApiError, match="connection refused"):
        install(api, clock)
    assert 60 <= clock.time < 63


@pytest.mark.parametrize("status", ["pending-upgrade", "pending-rollback", "pending-install", "uninstalling"])
def test_an_operation_that_never_ended_is_marked_as_failed_before_an_upgrade(status: str) -> None:
    api = Cluster({SECRETS: [record(2, status), record(1, "deployed")]})
    said = upgrade(api)
    [(path, patch)] = api.patched
    written = decode(patch["data"]["release"])
    assert path == f"{SECRETS}/sh.helm.release.v1.gpu-operator.v2"
    assert patch["metadata"] == {"resourceVersion": "200", "labels": {"status": "failed"}}
    assert written["info"]["status"] == "failed"
    assert (written["config"], written["version"]) == (VALUES, 2)
    assert f"{status} since" in str(said)


@pytest.mark.parametrize("status", ["deployed", "failed"])
def test_a_release_that_can_be_upgraded_is_not_touched(status: str) -> None:
    api = Cluster({SECRETS: [record(1, "superseded"), record(2, status)]})
    assert upgrade(api) is None
    assert api.patched == []


def test_an_upgrade_that_somebody_finishes_in_time_is_not_marked() -> None:
    clock = Clock()
    api = Cluster({SECRETS: [record(2, "pending-upgrade")]})
    clock.at(6, lambda: api.objects.update({SECRETS: [record(2, "deployed")]}))
    assert upgrade(api, clock, age=1) is None
    assert api.patched == []


def test_the_status_of_a_release_is_that_of_its_newest_revision_by_number() -> None:
    found = [record(9, "superseded"), record(10, "failed"), record(1, "deployed", "b")]
    known = statuses(Cluster({"/api/v1/secrets": found}))
    assert known == {RELEASE: "failed", ("gpu-operator", "b"): "deployed"}


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


def test_a_deployed_release_is_there_and_one_request_says_so() -> None:
    api = Counting({SECRETS: [record(1, "superseded"), record(2, "deployed")]})
    assert missing(api, {(*RELEASE, 2), ("gpu-operator", None, None)}) == []
    assert api.asked == [SECRETS]


@pytest.mark.parametrize("secrets", [[], [record(1, "uninstalling")], [record(1, "deployed", "another")]])
def test_a_release_without_a_deployed_revision_is_missing(secrets: list[dict[str, Any]]) -> None:
    [found] = missing(Counting({SECRETS: secrets}), [(*RELEASE, 1)])
    assert found == f"Helm release gpu-operator/gpu-operator is not on the cluster. {AGAIN}"


@pytest.mark.parametrize(
    ("expected", "back"), [(1, "helm rollback gpu-operator 1 -n gpu-operator, then: "), (3, "busbar up")]
)
def test_a_revision_that_others_have_deployed_is_not_that_of_the_stack(expected: int, back: str) -> None:
    """Neither the engine nor its refresh sees other values, and the outputs name the former version."""
    [found] = missing(Counting({SECRETS: [record(2, "deployed")]}), [(*RELEASE, expected)])
    assert f"is at revision 2, expected {expected}: this stack has not installed it. Fix: {back}" in found
    assert found.endswith("busbar up STACK --refresh")


@pytest.mark.parametrize("objects", [{}, {OWN: {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}}])
def test_a_namespace_that_is_gone_or_being_deleted_is_missing(objects: dict[str, Any]) -> None:
    expected = [("nccl-validation", None, None)]
    [found] = missing(Counting(objects), expected)
    assert found == f"namespace nccl-validation is not on the cluster. {AGAIN}"
    assert missing(Counting({OWN: {"metadata": {}}}), expected) == []


def test_an_error_of_the_api_is_no_absence() -> None:
    api = Counting({})
    api.failures = [unreachable()]
    with pytest.raises(ApiError):
        missing(api, [("nccl-validation", None, None)])


def deployed(*charts: str, status: str = "deployed") -> Counting:
    """Helm's records of a release, oldest first, each with the version of its chart."""
    found = ({"metadata": {"version": version}} for version in charts)
    records = [record(n, status, "network-operator", chart=chart) for n, chart in enumerate(found, 9)]
    return Counting({NETWORK_SECRETS: records})


def skipped(api: Cluster, wanted: str) -> str | None:
    installed = deployed_version(api, NETWORK_OPERATOR.namespace, NETWORK_OPERATOR.release)
    found = NETWORK_OPERATOR.skipped_releases(installed, wanted)
    return str(found) if found else None


def test_an_upgrade_over_major_releases_is_named_with_those_between() -> None:
    said = str(skipped(deployed("26.1.0", "26.1.2"), "26.10.0"))
    assert said.startswith("network_operator.version: '26.10.0' cannot follow 26.1.2, which is installed")
    assert said.endswith("Fix: upgrade to 26.4.2, then to 26.7.0 first, each with: busbar up STACK")


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
