"""Helm's records after a killed update: what is deleted, what is waited for, what is not touched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from busbar.helm.releases import before_install, before_upgrade, decode, encode, statuses
from busbar.kube.client import ApiError
from tests.support.kube_cluster import Clock, Cluster, unreachable

SECRETS = "/api/v1/namespaces/gpu-operator/secrets"
BEGUN = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
VALUES = {"driver": {"enabled": True, "version": "580"}, "replicas": 8}


def record(revision: int, status: str) -> dict[str, Any]:
    body = {
        "name": "gpu-operator",
        "version": revision,
        "info": {"status": status, "description": "Initial install underway"},
        "config": VALUES,
    }
    return {
        "metadata": {
            "name": f"sh.helm.release.v1.gpu-operator.v{revision}",
            "namespace": "gpu-operator",
            "uid": f"uid-{revision}",
            "resourceVersion": f"{revision}00",
            "creationTimestamp": BEGUN.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "labels": {"owner": "helm", "name": "gpu-operator", "status": status, "version": str(revision)},
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
    assert api.deleted == [
        (f"{SECRETS}/sh.helm.release.v1.gpu-operator.v1", {"uid": "uid-1", "resourceVersion": "100"})
    ]
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
    def secret(name: str, revision: int, status: str) -> dict[str, Any]:
        labels = {"owner": "helm", "name": name, "version": str(revision), "status": status}
        return {"metadata": {"namespace": "n", "labels": labels}}

    found = [secret("a", 9, "superseded"), secret("a", 10, "failed"), secret("b", 1, "deployed")]
    assert statuses(Cluster({"/api/v1/secrets": found})) == {("n", "a"): "failed", ("n", "b"): "deployed"}
