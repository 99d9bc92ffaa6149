"""Collecting a measurement: which job gives which verdict, what is stored, and what is not repeated."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard

from busbar.collect.busy import Kept
from busbar.collect.collector import Collected, collect, row_text
from busbar.collect.spec import CollectSpec
from busbar.judge.archive import Archive
from busbar.judge.nccl.expected import JUDGE
from busbar.judge.nccl.verdict import SCHEMA, judge_archive
from busbar.kube.client import ApiError, JsonObject
from busbar.manifests import mpijob as manifests
from busbar.outputs.contract import summarize
from tests.support.kube_cluster import Clock, Cluster, container, pod, unreachable
from tests.support.kube_site import job as configured
from tests.unit.collect import launcher_log

JOB = "/apis/kubeflow.org/v2beta1/namespaces/ns/mpijobs/nccl"
PODS = "/api/v1/namespaces/ns/pods"
LAUNCHER = f"{PODS}/nccl-launcher-x"
EVENTS = "/api/v1/namespaces/ns/events"
CONFIG_MAPS = "/api/v1/namespaces/ns/configmaps"
SUSPENDED = {"spec": {"runPolicy": {"suspend": True}}}
NODE_EVENTS = "/api/v1/namespaces/default/events"
MEASURED_AT = "2026-11-23T01:02:03Z"
BY_A_FORMER_JUDGE = f"of judge {JUDGE - 1} (this busbar has judge {JUDGE})"
ENDED = pod(
    "nccl-launcher-x",
    "launcher",
    phase="Succeeded",
    containerStatuses=[container({"terminated": {"exitCode": 0}})],
)


def mpijob(condition: str = "Succeeded", uid: str = "u-1") -> Any:
    made = manifests.render(configured(nodes=2))
    made["metadata"] |= {"name": "nccl", "uid": uid, "creationTimestamp": MEASURED_AT}
    conditions = [{"type": condition, "status": "True", "reason": condition}]
    return {**made, "status": {"conditions": conditions}}


def serving(log: str, then: BaseException | None = None) -> Any:
    def connection(query: Mapping[str, str]) -> Iterator[bytes]:
        yield launcher_log.stamped(log)
        if then:
            raise then

    return connection


LINES = launcher_log.text().splitlines(keepends=True)


def finished(log: str | None = None, condition: str = "Succeeded") -> Cluster:
    objects = {JOB: mpijob(condition), PODS: [ENDED], LAUNCHER: ENDED, EVENTS: [], CONFIG_MAPS: []}
    api = Cluster(objects)
    api.logs = [serving(launcher_log.text() if log is None else log)]
    return api


def spec(folder: Path, **expectation: Any) -> CollectSpec:
    expected = {**launcher_log.EXPECTED, **expectation}
    return CollectSpec(
        namespace="ns", job="nccl", folder=str(folder), deadline_seconds=600, expectation=expected
    )


def found(api: Cluster, folder: Path, **changes: Any) -> Collected:
    return collect(api, spec(folder), Clock(), lambda _: None, **{"pool": "h100", **changes})


def run(
    api: Cluster, question: CollectSpec, clock: Clock | None = None, said: list[str] | None = None
) -> dict[str, Any]:
    progress = said.append if said is not None else lambda _: None
    return collect(api, question, clock or Clock(), progress, pool="h100").verdict


def stored(api: Cluster) -> dict[str, Any]:
    """The only ConfigMap that was made."""
    [(_, made)] = [each for each in api.created if each[0] == CONFIG_MAPS]
    return made


def check(verdict: Mapping[str, Any], name: str) -> dict[str, Any]:
    (found,) = [entry for entry in verdict["checks"] if entry["name"] == name]
    return dict(found)


def test_a_good_run_is_a_pass_and_log_verdict_and_report_are_kept(tmp_path: Path) -> None:
    said, api = list[str](), finished()
    verdict = run(api, spec(tmp_path / "pool"), said=said)
    assert (verdict["verdict"], api.patched) == ("pass", []), verdict["reasons"]
    assert verdict["schema"] == SCHEMA
    assert verdict["busbw_gbps"] == pytest.approx(2.0, abs=0.01)
    kept = zstandard.ZstdDecompressor().stream_reader((tmp_path / "pool/nccl.log.zst").read_bytes()).read()
    assert kept.decode() == launcher_log.text()
    assert json.loads((tmp_path / "pool/verdict.json").read_text()) == verdict
    assert "<html" in (tmp_path / "pool/report.html").read_text()
    assert said[:2] == ["following the log of nccl-launcher-x", "measuring all_reduce"]
    assert "4 MiB: 2.00 GB/s out of place, 2.00 GB/s in place" in said
    assert said[-1] == f"pass: 2 GB/s; report: {tmp_path / 'pool/report.html'}"


def test_record_and_verdict_are_in_the_cluster_beside_the_log_and_for_the_outputs(tmp_path: Path) -> None:
    api = finished()
    made = found(api, tmp_path)
    metadata, data = stored(api)["metadata"], stored(api)["data"]
    assert json.loads(data["verdict.json"]) == made.verdict
    assert (metadata["labels"]["busbar/history"], made.config_map) == ("h100", f"ns/{metadata['name']}")
    assert "ownerReferences" not in metadata, "it outlives the job"
    assert made.record and made.record.expectation == spec(tmp_path).expectation
    record = made.record.model_dump(mode="json")
    assert record == json.loads(data["record.json"]) == Archive(tmp_path).record()
    assert (made.record.outcome.succeeded, made.record.complete) == (True, True)
    assert (made.record.nodes, made.record.measured_at) == (("worker-1", "worker-2"), MEASURED_AT)
    settings = {"iterations": "20", "warmup": "5", "job": "nccl", "run": "1"}
    assert settings.items() <= made.record.settings.items()
    assert (tmp_path / "source.json").stat().st_mode & 0o777 == 0o600, "it has the environment of the ranks"


@pytest.mark.parametrize(
    ("log", "kind", "reason", "says"),
    [
        (launcher_log.text(), "Normal", "NcclPass", "of pool h100 on 2 nodes: pass, 2 GB/s"),
        ("", "Warning", "NcclUnknown", "of pool h100 on 2 nodes: unknown; source: the log is empty"),
    ],
)
def test_a_verdict_is_an_event_on_nodes(log: str, kind: str, reason: str, says: str, tmp_path: Path) -> None:
    api = finished(log)
    run(api, spec(tmp_path))
    found = [body for path, body in api.created if path == NODE_EVENTS]
    assert [each["involvedObject"]["name"] for each in found] == ["worker-1", "worker-2"]
    assert {(each["type"], each["reason"]) for each in found} == {(kind, reason)}
    assert says in found[0]["message"]


@pytest.mark.parametrize(("condition", "code", "verdict"), [("Succeeded", 0, "pass"), ("Failed", 1, "fail")])
@pytest.mark.parametrize("kind", ["update", "run"])
def test_a_kept_log_is_judged_again_from_its_folder_alone_with_the_same_verdict_byte_for_byte(
    tmp_path: Path, condition: str, code: int, verdict: str, kind: str
) -> None:
    found(finished(launcher_log.text(exit_code=code), condition), tmp_path / "kept", kind=kind)
    judged = judge_archive(Archive(tmp_path / "kept"))
    assert judged is not None and judged[1].verdict == judged[1].check("job").status == verdict
    Archive(tmp_path / "again").save_verdict(judged[1].model_dump(mode="json"))
    first, again = (tmp_path / name / "verdict.json" for name in ("kept", "again"))
    assert first.read_bytes() == again.read_bytes()


def test_a_log_that_was_not_read_to_its_end_is_not_judged_from_its_folder(tmp_path: Path) -> None:
    found(finished(launcher_log.text()[:-40]), tmp_path)
    assert judge_archive(Archive(tmp_path)) is None


def test_a_run_on_a_cluster_of_others_has_its_record_beside_the_log_only(tmp_path: Path) -> None:
    api = finished()
    assert found(api, tmp_path, pool="run-1", kind="run").config_map is None
    assert (api.created, Archive(tmp_path).record()["kind"]) == ([], "run")


def test_a_stored_verdict_is_returned_with_its_record_and_no_log_is_read(tmp_path: Path) -> None:
    api, other = finished(), tmp_path / "another machine"
    first, again = found(api, tmp_path / "here"), found(api, other)
    assert first.record and again.record
    record = {**first.record.model_dump(mode="json"), "folder": str(other)}
    assert again.record.model_dump(mode="json") == record
    assert (again.verdict, again.config_map) == (first.verdict, first.config_map)
    assert len(api.log_queries) == 1 and (other / "report.html").exists()


def test_a_stored_verdict_of_another_form_is_judged_anew(tmp_path: Path) -> None:
    api = finished()
    run(api, spec(tmp_path))
    stored(api)["data"]["verdict.json"] = '{"schema": 0, "bandwidth": "good"}'
    assert run(api, spec(tmp_path))["verdict"] == "pass"


class Upgraded:
    """A pool that was measured and judged by a former judge, for a busbar with another one."""

    def __init__(self, folder: Path) -> None:
        self.api, self.folder, self.said = finished(), folder, list[str]()
        made = self.collect()
        self.measured = made.verdict
        self.config_map = f"{CONFIG_MAPS}/{str(made.config_map).partition('/')[2]}"
        former = {**made.verdict, "judge": JUDGE - 1}
        self.api.objects[self.config_map]["data"]["verdict.json"] = json.dumps(former)
        self.api.objects[CONFIG_MAPS] = [self.api.objects[self.config_map]]
        self.former = summarize(former, record=made.record, config_map=made.config_map)

    def collect(self, previous: JsonObject | None = None) -> Collected:
        wanted = spec(self.folder)
        return collect(self.api, wanted, Clock(), self.said.append, previous=previous, pool="h100")

    def kept(self, previous: JsonObject | None = None) -> JsonObject:
        """The former result that stays."""
        with pytest.raises(Kept) as kept:
            self.collect(previous)
        assert f"the former verdict {BY_A_FORMER_JUDGE} stays" in self.said[-1]
        return kept.value.found

    def lose(self, *names: str) -> None:
        """Lose the kept `log`, the `job` with its pods, the `record` in the cluster."""
        if "log" in names:
            (self.folder / "nccl.log.zst").unlink()
        if "job" in names:
            del self.api.objects[JOB]
        if "record" in names:
            del self.api.objects[self.config_map]
            self.api.objects[CONFIG_MAPS] = []


@pytest.mark.parametrize("lost", [(), ("record",)])
def test_a_new_judge_judges_the_kept_log_and_measures_nothing(tmp_path: Path, lost: tuple[str, ...]) -> None:
    pool = Upgraded(tmp_path)
    pool.lose(*lost)
    assert pool.collect(pool.former).verdict == pool.measured
    assert len(pool.api.log_queries) == 1


def test_a_job_whose_log_is_only_in_its_pod_keeps_the_verdict_in_the_cluster(tmp_path: Path) -> None:
    pool = Upgraded(tmp_path)
    pool.lose("log")
    found = pool.collect(pool.former)
    assert found.verdict == {**pool.measured, "judge": JUDGE - 1}
    assert json.loads((tmp_path / "verdict.json").read_text()) == found.verdict
    assert f"verdict {BY_A_FORMER_JUDGE} found in the cluster" in str(pool.said)
    assert len(pool.api.log_queries) == 1


@pytest.mark.parametrize("lost", [("log", "record"), ("log", "record", "job"), ("record", "job")])
def test_a_verdict_that_only_the_state_has_stays(tmp_path: Path, lost: tuple[str, ...]) -> None:
    pool = Upgraded(tmp_path)
    pool.lose(*lost)
    assert pool.kept(pool.former) == pool.former
    assert len(pool.api.log_queries) == 1


def test_a_log_that_cannot_be_read_any_more_leaves_the_verdict(tmp_path: Path) -> None:
    pool = Upgraded(tmp_path)
    (tmp_path / "nccl.log.zst").write_bytes(b"damaged")
    assert pool.kept(pool.former) == pool.former


def test_a_verdict_in_the_cluster_outlives_its_job(tmp_path: Path) -> None:
    pool = Upgraded(tmp_path)
    pool.lose("log", "job")
    assert pool.kept() == pool.former
    other = spec(tmp_path, expected_busbw_gbps=100.0)
    with pytest.raises(Kept):
        pool.collect()
    assert run(pool.api, other)["verdict"] == "unknown", "it is not a verdict on another expectation"


def test_without_any_verdict_the_log_is_read_and_a_missing_job_is_unknown(tmp_path: Path) -> None:
    pool = Upgraded(tmp_path)
    pool.lose("log", "record")
    pool.api.logs = [serving(launcher_log.text())]
    assert pool.collect().verdict == pool.measured
    pool.lose("log", "record", "job")
    verdict = pool.collect().verdict
    assert (verdict["verdict"], verdict["reasons"]) == ("unknown", ["job: MPIJob ns/nccl does not exist"])


def test_another_expectation_judges_the_same_log_again_and_runs_nothing(tmp_path: Path) -> None:
    said, api = list[str](), finished()
    run(api, spec(tmp_path))
    stricter = run(api, spec(tmp_path, expected_busbw_gbps=100.0), said=said)
    assert said[0] == "nccl: judging the archived log again"
    assert said[-len(stricter["reasons"]) :] == [f"  {reason}" for reason in stricter["reasons"]]
    assert stricter["verdict"] == "fail"
    assert check(stricter, "busbw")["status"] == "fail"
    assert len(api.log_queries) == 1
    [(_, replaced)] = api.patched
    assert json.loads(replaced["data"]["verdict.json"]) == stricter


def test_the_log_of_a_former_job_is_not_taken_for_this_one(tmp_path: Path) -> None:
    run(finished(), spec(tmp_path))
    api = finished(launcher_log.text(busbw=1.0))
    api.objects[JOB] = mpijob(uid="u-2")
    assert run(api, spec(tmp_path))["busbw_gbps"] == pytest.approx(1.0, abs=0.01)


def test_a_job_that_failed_is_a_failure_whatever_its_table_says(tmp_path: Path) -> None:
    api = finished(launcher_log.text(exit_code=3), condition="Failed")
    verdict = run(api, spec(tmp_path))
    assert (verdict["verdict"], api.patched) == ("fail", [])
    assert check(verdict, "job")["status"] == "fail"
    assert verdict["reasons"][0] == "job: all_reduce ended with exit code 3; the MPIJob failed: Failed"


def with_a_gap(log: str) -> Cluster:
    """The log in two connections that share no line: the second starts nine seconds after the first."""
    lines = launcher_log.stamped(log).splitlines(keepends=True)
    later = [line.replace(b"2026-01-01T00:00:00", b"2026-01-01T00:00:09") for line in lines]

    def broken(query: Mapping[str, str]) -> Iterator[bytes]:
        yield b"".join(lines[:2])
        raise unreachable()

    api = finished()
    api.logs = [broken, lambda query: iter(later[2:])]
    return api


@pytest.mark.parametrize("counted", [False, True])
def test_lines_that_may_be_missing_are_no_pass_unless_all_were_counted(tmp_path: Path, counted: bool) -> None:
    verdict = run(with_a_gap(launcher_log.text(counted=counted)), spec(tmp_path))
    assert verdict["passed"] is counted
    missing = "lines may be missing after 1 of 1 reconnections" in str(verdict["reasons"])
    assert missing is not counted


@pytest.mark.parametrize(
    ("there", "read"),
    [([], "34 lines"), ([LINES[9]] * 2, "36 lines"), ([LINES[9][7:]], "35 lines")],
    ids=["a line is missing", "a line came twice", "the start of a line is missing"],
)
def test_a_log_unlike_the_launchers_count_is_no_pass(tmp_path: Path, there: list[str], read: str) -> None:
    verdict = run(finished("".join([*LINES[:9], *there, *LINES[10:]])), spec(tmp_path))
    assert verdict["verdict"] != "pass"
    (reason,) = [reason for reason in verdict["reasons"] if "the launcher wrote" in reason]
    assert f"wrote 35 lines ({sum(map(len, LINES[:-2]))} bytes), {read}" in reason
    assert "container-log-max-size" in reason
    assert Archive(tmp_path).complete_log_of is None


def test_a_job_that_cannot_start_is_unknown_with_the_reasons_and_frees_the_gpus(tmp_path: Path) -> None:
    waiting = {"waiting": {"reason": "InvalidImageName", "message": "couldn't parse image"}}
    worker = pod("nccl-worker-0", phase="Pending", containerStatuses=[container(waiting)])
    api = Cluster({JOB: mpijob("Created"), PODS: [worker], EVENTS: []})
    verdict = run(api, spec(tmp_path))
    assert (verdict["verdict"], verdict["passed"]) == ("unknown", False)
    assert "job: nccl-worker-0: InvalidImageName: container nccl: couldn't" in verdict["reasons"][1]
    assert api.patched == [(JOB, SUSPENDED)]


def test_a_run_that_hangs_is_ended_at_the_deadline_with_what_was_read(tmp_path: Path) -> None:
    running = pod("nccl-launcher-x", "launcher", containerStatuses=[container({"running": {}})])
    api = Cluster({JOB: mpijob("Running"), PODS: [running], LAUNCHER: running, EVENTS: []})
    api.logs = [serving("".join(LINES[:12]))] * 2000
    verdict = run(api, spec(tmp_path))
    assert verdict["verdict"] != "pass"
    assert "timed out after 600 s" in str(verdict["reasons"])
    assert api.patched == [(JOB, SUSPENDED)]


def test_a_verdict_that_cannot_be_published_is_still_the_verdict(tmp_path: Path) -> None:
    said: list[str] = []
    api = finished()

    def forbidden(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        raise ApiError(f"POST {path}", 403, "quota exceeded")

    api.create = forbidden  # type: ignore[method-assign]
    assert run(api, spec(tmp_path), said=said)["verdict"] == "pass"
    assert any("could not be written: POST" in line for line in said)


def test_a_killed_collection_leaves_the_former_log_and_the_next_one_finishes(tmp_path: Path) -> None:
    api = finished()
    api.logs = [serving(launcher_log.text()[:500], then=KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        run(api, spec(tmp_path))
    assert list(tmp_path.iterdir()) == []
    api.logs = [serving(launcher_log.text())]
    assert run(api, spec(tmp_path))["verdict"] == "pass"


def test_a_verdict_on_part_of_a_log_is_not_final(tmp_path: Path) -> None:
    api = finished(launcher_log.text()[:500])
    assert not run(api, spec(tmp_path))["passed"]
    api.logs = [serving(launcher_log.text())]
    assert run(api, spec(tmp_path))["verdict"] == "pass"


def test_a_job_whose_end_nobody_recorded_is_unknown_and_suspended(tmp_path: Path) -> None:
    clock, api = Clock(), finished(condition="Running")
    verdict = run(api, spec(tmp_path), clock)
    reasons = ["job: the MPIJob has neither succeeded nor failed"]
    assert (verdict["verdict"], verdict["reasons"]) == ("unknown", reasons)
    assert len(api.patched) == 1
    assert 60 <= clock.time < 65


def test_a_launcher_that_is_deleted_is_unknown_and_not_waited_for(tmp_path: Path) -> None:
    clock, api = Clock(), finished(condition="Running")
    del api.objects[LAUNCHER]
    verdict = run(api, spec(tmp_path), clock)
    assert verdict["verdict"] == "unknown"
    assert "was deleted before its log was read" in str(verdict["reasons"])
    assert clock.time < 5


def test_what_the_launcher_reports_comes_first_among_the_reasons_of_a_failure(tmp_path: Path) -> None:
    reported = "# busbar: no program mpirun on PATH. Fix: ...\n# busbar: measuring"
    log = launcher_log.text(counted=False).replace("# busbar: measuring", reported)
    verdict = run(finished(log, condition="Failed"), spec(tmp_path))
    assert verdict["verdict"] == "fail"
    assert verdict["reasons"][0].startswith("job: no program mpirun on PATH")


def test_an_api_that_refuses_the_stored_verdict_ends_the_command(tmp_path: Path) -> None:
    api = finished()
    api.failures = [None, ApiError("GET", 403, "forbidden")]
    with pytest.raises(ApiError, match="403"):
        run(api, spec(tmp_path))


@pytest.mark.parametrize(
    ("row", "is_complete"),
    [
        ("8 2 float sum -1 9.1 0.10 0.20 0 9.2 0.30 0.40 0", True),
        ("[1,0]<stdout>: 8 2 float sum -1 9.1 0.1 0.20 0 9.2 0.3 0.40 0", True),
        ("8 2 float sum -1 9.1 0.10 0.20 0 9.2 0.30", False),
        ("8 2 float sum -1 9.1 0.10 0.20 0 9.2 0.30 oops 0", False),
        ("# Avg bus bandwidth : 0.3", False),
    ],
)
def test_only_a_complete_row_of_the_table_is_progress(row: str, is_complete: bool) -> None:
    text = "8 B: 0.20 GB/s out of place, 0.40 GB/s in place" if is_complete else None
    assert row_text(row.encode()) == text
