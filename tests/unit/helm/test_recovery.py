"""Helm's records after a killed update: what is deleted, what is waited for, what is not touched."""

from __future__ import annotations

import io
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from busbar.helm.records import UnreadableRecord, chart_name, decode, encode, statuses
from busbar.helm.recovery import DesiredRelease, ForeignRelease, before_install, before_upgrade
from busbar.kube.client import ApiError
from tests.support.kube_cluster import Clock, Cluster, unreachable

SECRETS = "/api/v1/namespaces/gpu-operator/secrets"
BEGUN = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
VALUES = {"driver": {"enabled": True, "version": "580"}, "replicas": 8}
DESIRED = DesiredRelease(
    name="gpu-operator",
    namespace="gpu-operator",
    chart="gpu-operator",
    values=VALUES,
    disable_setting="gpu_operator.enabled: false",
)


def record(revision: int, status: str, *, chart: str = "gpu-operator", values: Any = None) -> dict[str, Any]:
    body = {
        "name": "gpu-operator",
        "version": revision,
        "info": {"status": status, "description": "Initial install underway"},
        "chart": {"metadata": {"name": chart, "version": "v26.3.0"}},
        "config": VALUES if values is None else values,
    }
    return {
        "metadata": {
            "name": f"sh.helm.release.v1.gpu-operator.v{revision}",
            "namespace": "gpu-operator",
            "uid": f"uid-{revision}",
            "resourceVersion": f"{revision}00",
            "creationTimestamp": BEGUN.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "labels": {"owner": "helm", "name": "gpu-operator", "status": status},
        },
        "data": {"release": encode(body)},
    }


def later(seconds: float, clock: Clock) -> Any:
    """Now, `seconds` after the records were begun and as much more as has been waited."""
    return lambda: BEGUN + timedelta(seconds=seconds + clock.now())


def install(api: Cluster, clock: Clock | None = None, age: float = 3600) -> str | None:
    clock = clock or Clock()
    return before_install(api, DESIRED, clock, later(age, clock))


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


def test_values_that_pulumi_wrote_as_floats_or_left_out_as_null_are_the_same_values() -> None:
    values = {"driver": {"enabled": True, "version": "580", "env": None}, "replicas": 8.0}
    api = Cluster({SECRETS: [record(1, "deployed", values=values)]})
    install(api)
    assert len(api.deleted) == 1


def test_a_release_with_other_values_is_left_alone_and_the_error_says_where_but_not_what() -> None:
    theirs = {"driver": {"enabled": 1, "version": "secret-580"}, "replicas": 8, "toolkit": {}}
    api = Cluster({SECRETS: [record(1, "deployed", values=theirs)]})
    with pytest.raises(ForeignRelease) as refused:
        install(api)
    text = str(refused.value)
    assert "values differ at driver.enabled, driver.version, toolkit" in text
    assert "deployed since 2026-05-01 12:00:00 UTC" in text
    assert "`helm uninstall gpu-operator --namespace gpu-operator`" in text
    assert "gpu_operator.enabled: false" in text
    assert "secret-580" not in text
    assert api.deleted == []


def test_a_release_of_another_chart_is_left_alone() -> None:
    api = Cluster({SECRETS: [record(1, "deployed", chart="nvidia-device-plugin")]})
    with pytest.raises(ForeignRelease, match="its chart is nvidia-device-plugin, expected gpu-operator"):
        install(api)
    assert api.deleted == []


def test_a_young_pending_installation_may_still_be_finished_by_the_plugin_that_outlived_its_engine() -> None:
    clock = Clock()
    api = Cluster({SECRETS: [record(1, "pending-install")]})
    clock.at(10, lambda: api.objects.update({SECRETS: [record(1, "deployed")]}))
    said = install(api, clock, age=5)
    assert 10 <= clock.time < 13
    assert "deployed" in str(said)


def test_a_pending_installation_that_nobody_finishes_is_waited_for_only_until_it_is_old() -> None:
    clock = Clock()
    api = Cluster({SECRETS: [record(1, "pending-install")]})
    install(api, clock, age=5)
    assert 25 <= clock.time < 28
    assert len(api.deleted) == 1


def test_a_cluster_whose_clock_is_ahead_does_not_prolong_the_wait() -> None:
    clock = Clock()
    install(Cluster({SECRETS: [record(1, "pending-install")]}), clock, age=-3600)
    assert clock.time == 30


def test_a_record_that_changes_underneath_is_looked_at_again() -> None:
    clock = Clock()
    api = Cluster({SECRETS: [record(1, "pending-install")]})
    api.failures = [None, ApiError("DELETE", 409, "the precondition failed")]
    clock.at(1, lambda: api.objects.update({SECRETS: [record(1, "deployed", values={"theirs": True})]}))
    with pytest.raises(ForeignRelease):
        install(api, clock)
    assert api.deleted == []


def test_an_api_that_is_away_for_a_moment_is_asked_again() -> None:
    api = Cluster({SECRETS: [record(1, "failed")]})
    api.failures = [unreachable(), ApiError("GET", 503, "starting")]
    install(api)
    assert len(api.deleted) == 1


def test_an_api_that_stays_away_ends_the_wait() -> None:
    clock = Clock()
    api = Cluster()
    api.failures = [unreachable() for _ in range(100)]
    with pytest.raises(ApiError, match="connection refused"):
        install(api, clock)
    assert 60 <= clock.time < 63


def test_credentials_that_are_refused_are_not_tried_again() -> None:
    clock = Clock()
    api = Cluster()
    api.failures = [ApiError("GET", 403, "forbidden")]
    with pytest.raises(ApiError, match="forbidden"):
        install(api, clock)
    assert clock.time == 0


def test_a_secret_that_only_looks_like_helms_is_named_and_left() -> None:
    odd = record(1, "deployed")
    odd["data"]["release"] = "bm90IGhlbG0="
    api = Cluster({SECRETS: [odd]})
    with pytest.raises(UnreadableRecord, match=r"gpu-operator/sh\.helm\.release\.v1\.gpu-operator\.v1"):
        install(api)
    assert api.deleted == []


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


@pytest.mark.parametrize(
    ("chart", "name"),
    [
        ("gpu-operator", "gpu-operator"),
        ("oci://registry.example/charts/gpu-operator", "gpu-operator"),
        ("https://charts.example/gpu-operator-v26.3.0.tgz", "gpu-operator"),
    ],
)
def test_a_chart_from_afar_has_the_name_in_its_address(chart: str, name: str) -> None:
    assert chart_name(chart) == name


def test_a_local_chart_has_the_name_that_it_gives_itself(tmp_path: Path) -> None:
    text = b"name: mpi-operator\nversion: 1.0.0\n"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "Chart.yaml").write_bytes(text)
    entry = tarfile.TarInfo("mpi-operator/Chart.yaml")
    entry.size = len(text)
    with tarfile.open(tmp_path / "renamed.tgz", "w:gz") as archive:
        archive.addfile(entry, io.BytesIO(text))
    assert chart_name(str(tmp_path / "folder")) == "mpi-operator"
    assert chart_name(str(tmp_path / "renamed.tgz")) == "mpi-operator"


def test_the_status_of_a_release_is_that_of_its_newest_revision_by_number() -> None:
    def secret(name: str, revision: int, status: str) -> dict[str, Any]:
        labels = {"owner": "helm", "name": name, "version": str(revision), "status": status}
        return {"metadata": {"namespace": "n", "labels": labels}}

    found = [secret("a", 9, "superseded"), secret("a", 10, "failed"), secret("b", 1, "deployed")]
    assert statuses(Cluster({"/api/v1/secrets": found})) == {("n", "a"): "failed", ("n", "b"): "deployed"}
