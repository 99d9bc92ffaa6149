"""Collecting a measurement: what ends in which verdict, what is kept, and what is not done twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard

from busbar.collect.collect import collect
from busbar.collect.jobwatch import Unreachable
from busbar.collect.spec import CollectSpec
from busbar.kube.client import ApiError
from tests.support.kube_cluster import Clock, Cluster, container, pod, unreachable, warning
from tests.unit.collect import launcher_log

JOB = "/apis/kubeflow.org/v2beta1/namespaces/ns/mpijobs/nccl"
PODS = "/api/v1/namespaces/ns/pods"
LAUNCHER = f"{PODS}/nccl-launcher-x"
EVENTS = "/api/v1/namespaces/ns/events"
CONFIG_MAPS = "/api/v1/namespaces/ns/configmaps"
ENDED = pod(
    "nccl-launcher-x",
    "launcher",
    phase="Succeeded",
    containerStatuses=[container({"terminated": {"exitCode": 0}})],
)


def mpijob(condition: str = "Succeeded", uid: str = "u-1") -> Any:
    return {
        "metadata": {"name": "nccl", "uid": uid},
        "status": {"conditions": [{"type": condition, "status": "True", "reason": condition}]},
    }


def serving(log: str, then: Exception | None = None) -> Any:
    def connection(query: Mapping[str, str]) -> Iterator[bytes]:
        yield launcher_log.stamped(log)
        if then:
            raise then

    return connection


def finished(log: str | None = None, condition: str = "Succeeded") -> Cluster:
    api = Cluster({JOB: mpijob(condition), PODS: [ENDED], LAUNCHER: ENDED, EVENTS: []})
    api.logs = [serving(launcher_log.text() if log is None else log)]
    return api


def spec(folder: Path, **expectation: Any) -> CollectSpec:
    expected = {
        "nodes": 2,
        "gpus_per_node": 1,
        "rails": 1,
        "rate_gbps": 400,
        "transport": "socket",
        "collectives": ["all_reduce"],
        "min_bytes": launcher_log.SIZES[0],
        "max_bytes": launcher_log.SIZES[-1],
        "step_factor": 2,
        "expected_busbw_gbps": 2.0,
        **expectation,
    }
    return CollectSpec(
        namespace="ns", job="nccl", folder=str(folder), deadline_seconds=600, expectation=expected
    )


def run(
    api: Cluster, question: CollectSpec, clock: Clock | None = None, said: list[str] | None = None
) -> dict[str, Any]:
    tell = said.append if said is not None else lambda _: None
    return collect(api, question, clock or Clock(), tell).verdict


def check(verdict: Mapping[str, Any], name: str) -> dict[str, Any]:
    (found,) = [entry for entry in verdict["checks"] if entry["name"] == name]
    return dict(found)


def test_a_good_run_is_a_pass_and_log_verdict_and_report_are_kept(tmp_path: Path) -> None:
    said: list[str] = []
    verdict = run(finished(), spec(tmp_path / "pool"), said=said)
    assert verdict["verdict"] == "pass", verdict["reasons"]
    assert verdict["busbw_gbps"] == pytest.approx(2.0, abs=0.01)
    kept = zstandard.ZstdDecompressor().stream_reader((tmp_path / "pool/nccl.log.zst").read_bytes()).read()
    assert kept.decode() == launcher_log.text()
    assert json.loads((tmp_path / "pool/verdict.json").read_text()) == verdict
    assert "<html" in (tmp_path / "pool/report.html").read_text()
    assert "measuring all_reduce" in said
    assert "4 MiB: 2.00 GB/s out of place, 2.00 GB/s in place" in said


def test_the_verdict_is_published_in_the_cluster_and_goes_with_its_job(tmp_path: Path) -> None:
    api = finished()
    verdict = run(api, spec(tmp_path))
    ((where, stored),) = api.created
    assert where == CONFIG_MAPS
    assert json.loads(stored["data"]["verdict.json"]) == verdict
    assert stored["immutable"] is True
    (owner,) = stored["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("MPIJob", "nccl", "u-1")


def test_the_collection_tells_where_in_the_cluster_the_verdict_is(tmp_path: Path) -> None:
    api = finished()
    found = collect(api, spec(tmp_path), Clock(), lambda _: None)
    assert found.config_map == f"ns/{api.created[0][1]['metadata']['name']}"


def test_a_verdict_that_is_stored_already_is_returned_without_reading_the_log_again(tmp_path: Path) -> None:
    api = finished()
    first = run(api, spec(tmp_path / "here"))
    assert run(api, spec(tmp_path / "another machine")) == first
    assert len(api.log_queries) == 1
    assert (tmp_path / "another machine/report.html").exists()


def test_a_stored_verdict_of_another_form_is_judged_anew(tmp_path: Path) -> None:
    api = finished()
    run(api, spec(tmp_path))
    ((_, stored),) = api.created
    stored["data"]["verdict.json"] = '{"schema": 0, "bandwidth": "good"}'
    assert run(api, spec(tmp_path))["verdict"] == "pass"


def test_another_expectation_judges_the_same_log_again_without_the_cluster_running_anything(
    tmp_path: Path,
) -> None:
    api = finished()
    run(api, spec(tmp_path))
    stricter = run(api, spec(tmp_path, expected_busbw_gbps=100.0))
    assert stricter["verdict"] == "fail"
    assert check(stricter, "busbw")["status"] == "fail"
    assert len(api.log_queries) == 1
    assert len(api.created) == 2


def test_the_log_of_a_former_job_is_not_taken_for_this_one(tmp_path: Path) -> None:
    run(finished(), spec(tmp_path))
    api = finished(launcher_log.text(busbw=1.0))
    api.objects[JOB] = mpijob(uid="u-2")
    assert run(api, spec(tmp_path))["busbw_gbps"] == pytest.approx(1.0, abs=0.01)


def test_a_job_that_failed_is_a_failure_whatever_its_table_says(tmp_path: Path) -> None:
    verdict = run(finished(launcher_log.text(exit_code=3), condition="Failed"), spec(tmp_path))
    assert verdict["verdict"] == "fail"
    assert check(verdict, "job")["status"] == "fail"
    assert verdict["reasons"][0] == "job: all_reduce ended with exit code 3; the MPIJob failed: Failed"


@pytest.mark.parametrize(
    ("cut", "missing"),
    [
        (slice(1, None), "the beginning of the launcher's log is missing"),
        (slice(None, -1), "the end of the launcher's log is missing"),
    ],
)
def test_a_log_without_its_beginning_or_end_is_no_pass(tmp_path: Path, cut: slice, missing: str) -> None:
    log = "".join(launcher_log.text().splitlines(keepends=True)[cut])
    verdict = run(finished(log), spec(tmp_path))
    assert not verdict["passed"]
    assert any(missing in reason for reason in verdict["reasons"])


def test_lines_lost_in_a_rotation_are_no_pass_though_the_table_is_whole(tmp_path: Path) -> None:
    whole = launcher_log.stamped(launcher_log.text())
    later = whole.replace(b"2026-01-01T00:00:00", b"2026-01-01T00:00:09")
    lines = later.splitlines(keepends=True)

    def broken(query: Mapping[str, str]) -> Iterator[bytes]:
        yield b"".join(whole.splitlines(keepends=True)[:2])
        raise unreachable()

    api = finished()
    api.logs = [broken, lambda query: iter(lines[2:])]
    verdict = run(api, spec(tmp_path))
    assert not verdict["passed"]
    assert any("lines may be missing after 1 of 1 reconnections" in r for r in verdict["reasons"])


def test_an_api_server_that_dies_in_the_middle_does_not_lose_the_result(tmp_path: Path) -> None:
    log = launcher_log.text()
    half = log[: len(log) // 2]
    api = finished()
    api.logs = [serving(half, then=unreachable()), serving(log)]
    assert run(api, spec(tmp_path))["verdict"] == "pass"


def test_an_image_that_cannot_be_pulled_is_unknown_with_the_events_and_frees_the_gpus(
    tmp_path: Path,
) -> None:
    waiting = {"waiting": {"reason": "InvalidImageName", "message": "couldn't parse image"}}
    api = Cluster(
        {
            JOB: mpijob("Created"),
            PODS: [pod("nccl-worker-0", phase="Pending", containerStatuses=[container(waiting)])],
            EVENTS: [warning("nccl-worker-0", "Failed", "Error: InvalidImageName")],
        }
    )
    verdict = run(api, spec(tmp_path))
    assert verdict["verdict"] == "unknown"
    assert verdict["passed"] is False
    assert verdict["reasons"] == [
        "job: the job's pods cannot start",
        "job: nccl-worker-0: InvalidImageName: container nccl: couldn't parse image",
        "job: nccl-worker-0: Failed: Error: InvalidImageName",
    ]
    assert api.patched == [(JOB, {"spec": {"runPolicy": {"suspend": True}}})]
    assert api.created == []


def test_a_run_that_hangs_is_ended_at_the_deadline_with_what_was_read(tmp_path: Path) -> None:
    running = pod("nccl-launcher-x", "launcher", containerStatuses=[container({"running": {}})])
    api = Cluster({JOB: mpijob("Running"), PODS: [running], LAUNCHER: running, EVENTS: []})
    head = "".join(launcher_log.text().splitlines(keepends=True)[:12])
    api.logs = [serving(head)] * 2000
    verdict = run(api, spec(tmp_path))
    assert verdict["verdict"] != "pass"
    assert any("deadline of 600 s" in reason for reason in verdict["reasons"])
    assert api.patched == [(JOB, {"spec": {"runPolicy": {"suspend": True}}})]


def test_a_job_that_does_not_exist_is_unknown(tmp_path: Path) -> None:
    verdict = run(Cluster(), spec(tmp_path))
    assert verdict["verdict"] == "unknown"
    assert "there is no MPIJob" in verdict["reasons"][0]


def test_an_api_that_never_answers_gives_no_verdict_at_all(tmp_path: Path) -> None:
    api = finished()
    api.failures = [unreachable()] * 5000
    with pytest.raises(Unreachable):
        run(api, spec(tmp_path))


def test_a_verdict_that_cannot_be_published_is_still_the_verdict(tmp_path: Path) -> None:
    said: list[str] = []
    api = finished()

    def forbidden(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        raise ApiError(f"POST {path}", 403, "quota exceeded")

    api.create = forbidden  # type: ignore[method-assign]
    found = collect(api, spec(tmp_path), Clock(), said.append)
    assert (found.verdict["verdict"], found.config_map) == ("pass", None)
    assert any("could not be stored in the cluster" in line for line in said)


def test_a_killed_collection_leaves_the_former_log_and_the_next_one_finishes(tmp_path: Path) -> None:
    api = finished()
    api.logs = [serving(launcher_log.text()[:500], then=KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        run(api, spec(tmp_path))
    assert list(tmp_path.iterdir()) == []
    api.logs = [serving(launcher_log.text())]
    assert run(api, spec(tmp_path))["verdict"] == "pass"
