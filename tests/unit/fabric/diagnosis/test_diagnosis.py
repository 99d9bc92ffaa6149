"""The whole way: plan, job, the real launcher script in a real bash, its log, what is named.

mpirun and ssh are replaced (site.py): what real ones do with these arguments, only the lab shows.
"""

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from busbar.fabric.diagnosis import Findings, State, findings_of, stages
from busbar.fabric.diagnosis.kubernetes import StageWatch
from busbar.fabric.diagnosis.stages import Result, StageLog
from busbar.fabric.localise import Group
from busbar.fabric.measure.run import Interrupted, LeftBehind
from busbar.kube.client import JsonObject
from busbar.kube.nodes import NODES
from busbar.kube.wait import Deadline
from busbar.manifests import groups
from tests.support.kube_cluster import Clock, Cluster, container, pod, unschedulable
from tests.support.kube_site import job as configured
from tests.unit.collect import test_rejected as rejecting
from tests.unit.fabric.diagnosis.site import Site
from tests.unit.fabric.measure.foreign import holder


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "WORKER_SECONDS", 2)
    monkeypatch.setattr(groups, "LOGIN_SECONDS", 1)


def named(found: Findings) -> list[tuple[str, str]]:
    return [(row.cause, row.where) for row in found.rows]


TWO = (4, 4)  # rail groups
WAITING = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
IMAGE = {"phase": "Pending", "containerStatuses": [{"name": "nccl", "state": WAITING}]}


@pytest.mark.parametrize(
    ("groups", "jobs"), [((4,), [4 + 2, 14]), pytest.param(TWO, [8 + 4 + 4, 7 * 4], marks=pytest.mark.slow)]
)
def test_where_nothing_is_slow_two_jobs_say_so(
    groups: tuple[int, ...], jobs: list[int], tmp_path: Path
) -> None:
    site = Site(tmp_path, groups)
    found = site.diagnose()
    assert (named(found), sorted(found.healthy), found.exit_code) == ([], site.names, 0)
    assert [len(job) for job in site.jobs] == jobs
    assert site.api.left == []


@pytest.mark.parametrize(
    ("groups", "slow", "expected"),
    [
        ((4,), {"gpu-3": 0.5}, [("node", "gpu-3")]),
        pytest.param(
            TWO,
            {"gpu-1/2": 0.7, "gpu-6/7": 0.5},
            [("rail", "gpu-1 rail 2 (mlx5_2)"), ("rail", "gpu-6 rail 7 (mlx5_7)")],
            marks=pytest.mark.slow,
        ),
        ((4,), {"alone/gpu-4": 0.5}, [("NVLink inside the node", "gpu-4")]),
        pytest.param(
            TWO,
            {f"gpu-{n}": 0.5 for n in range(1, 9)},
            [("settings, or what all nodes share", "all")],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_slow_is_named_and_no_healthy_node(
    tmp_path: Path, groups: tuple[int, ...], slow: Mapping[str, float], expected: list[tuple[str, str]]
) -> None:
    site = Site(tmp_path, groups, slow)
    found = site.diagnose()
    assert (named(found), found.exit_code) == (expected, 1)
    bad = {node for row in found.rows for node in row.nodes}
    assert set(found.healthy) == (set(site.names) - bad if bad else set())


def test_a_node_10_percent_slow_is_named_with_what_its_peers_reach(tmp_path: Path) -> None:
    found = Site(tmp_path, slow={"gpu-3": 0.92}).diagnose()
    assert (named(found), len(found.healthy), found.exit_code) == ([("node", "gpu-3")], 7, 1)
    assert [(row.measured, row.expected, row.runs) for row in found.rows] == [(368, 400, 7)]


def test_pairs_that_nothing_can_be_compared_with_run_once(tmp_path: Path) -> None:
    found = Site(tmp_path, groups=(2, 2), slow={"gpu-3": 0.5}).diagnose()
    assert (named(found), sorted(found.healthy)) == ([("node", "one of gpu-3, gpu-4")], ["gpu-1", "gpu-2"])


def test_a_slow_rail_has_its_two_runs_their_partners_and_the_commands_for_them(tmp_path: Path) -> None:
    site = Site(tmp_path, groups=(4,), slow={"gpu-3/2": 0.5})
    state = site.state()
    of_rail = [group for group, *_ in state.results if group.rail == 2]
    # The slower of the two runs may have met somebody else's traffic.
    state.results = [(each[0], 10.0, "") if each[0] == of_rail[0] else each for each in state.results]
    [row] = findings_of(state, site.scope()).rows
    expected = pytest.approx(43.1, abs=7)
    assert (row.measured, row.expected, row.runs, len(row.partners)) == (25.0, expected, 2, 2)
    partner = row.partners[0]
    assert row.next == (
        "on gpu-3: ib_write_bw -d mlx5_2 --report_gbits -D 10",
        f"on {partner}: ib_write_bw -d mlx5_2 --report_gbits -D 10 gpu-3",
        "ibdiagnet",
    )


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_worker_that_does_not_start_is_left_out_and_its_partner_is_judged(tmp_path: Path) -> None:
    site = Site(tmp_path, groups=(4,), missing={"gpu-2": IMAGE})
    found = site.diagnose()
    assert (named(found), found.exit_code) == ([], 2)
    assert list(found.absent) == ["gpu-2"] and "ImagePullBackOff" in found.absent["gpu-2"]
    assert sorted(found.healthy) == ["gpu-1", "gpu-3", "gpu-4"]
    assert all("gpu-2" not in group for group in site.jobs[1])


def test_a_worker_that_the_scheduler_has_not_placed_says_why_its_node_has_none() -> None:
    workers = [
        pod("w-0", conditions=[{"type": "Ready", "status": "True"}]) | {"spec": {"nodeName": "gpu-1"}},
        pod("w-1", phase="Pending", conditions=[unschedulable("too few")]) | {"spec": {}},
    ]
    api = Cluster({"/api/v1/namespaces/nccl/pods": workers, "/api/v1/namespaces/nccl/events": []})
    watch = StageWatch(api, "nccl", "job", Deadline(Clock(), 60), lambda _: None)
    assert watch.why_absent(["gpu-1", "gpu-2"]) == {
        "gpu-1": "its worker is not responding to ssh",
        "gpu-2": "w-1: Unschedulable: too few",
    }


@pytest.fixture
def running() -> JsonObject:
    """The launcher of a stage, which starts before its workers."""
    found: JsonObject = pod("nccl-launcher-x", "launcher", containerStatuses=[container({"running": {}})])
    return {**found, "spec": {"nodeName": "gpu-0", "containers": []}}


def stage(api: Cluster, clock: Clock | None = None) -> StageWatch:
    return StageWatch(api, "ns", "nccl", Deadline(clock or Clock(), 600), lambda _: None)


def test_a_worker_that_is_rejected_after_the_launcher_s_start_is_made_again(running: JsonObject) -> None:
    clock, bound = Clock(), rejecting.worker(1, phase="Pending")
    api = rejecting.Operator(running, rejecting.worker(0), bound)
    clock.at(8, lambda: bound.update(rejecting.rejected(1)))
    assert stage(api, clock).first_pod() == running
    assert [path for path, _ in api.deleted] == ["/api/v1/namespaces/ns/pods/nccl-worker-1"]


def test_a_stage_starts_without_a_worker_that_is_rejected_twice(running: JsonObject) -> None:
    api = rejecting.Operator(running, rejecting.worker(0), rejecting.rejected(1), rejections=2)
    watch = stage(api)
    assert watch.first_pod() == running and len(api.deleted) == 1
    assert "UnexpectedAdmissionError" in watch.why_absent(["gpu-1"])["gpu-1"]


@pytest.mark.parametrize("pending", [IMAGE, {"phase": "Pending"}], ids=["image", "nothing is said"])
@pytest.mark.usefixtures("impatient")
def test_a_launcher_beside_a_broken_worker_starts_elsewhere(pending: dict[str, Any], tmp_path: Path) -> None:
    site = Site(tmp_path, groups=(4,), missing={"gpu-2": pending}, launcher_on="gpu-2")
    found = site.diagnose()
    assert ([*found.absent], sorted(found.healthy)) == (["gpu-2"], ["gpu-1", "gpu-3", "gpu-4"])
    assert (found.stopped, found.exit_code) == ("", 2)
    assert site.clock.time < 300


@pytest.mark.usefixtures("impatient")
def test_where_no_worker_runs_the_launcher_s_node_is_not_at_fault(tmp_path: Path) -> None:
    nowhere = {f"gpu-{number}": IMAGE for number in range(1, 5)}
    site = Site(tmp_path, groups=(4,), missing=nowhere, launcher_on="gpu-2")
    found = site.diagnose()
    assert (found.absent, found.healthy, found.exit_code, len(site.jobs)) == ({}, (), 2, 1)
    assert "ImagePullBackOff" in found.stopped


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("limit", ["PARALLEL", "LOGINS"])
def test_a_worker_that_is_waited_for_takes_no_time_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    # The first one of the hostfile, where one group runs, or one worker is asked, at a time.
    monkeypatch.setattr(groups, limit, 1)
    site = Site(tmp_path, groups=(4,), missing={"gpu-4": {"phase": "Pending"}})
    found = site.diagnose()
    assert ([*found.absent], sorted(found.healthy)) == (["gpu-4"], ["gpu-1", "gpu-2", "gpu-3"])


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_worker_that_runs_and_does_not_answer_ssh_is_named(tmp_path: Path) -> None:
    found = Site(tmp_path, groups=(4,), hanging=("gpu-2",)).diagnose()
    assert (named(found), found.exit_code, found.absent) == ([("node", "gpu-2")], 1, {})
    assert found.rows[0].reasons == ("its worker is not responding to ssh",)
    assert found.rows[0].measured is None


def test_a_node_whose_groups_all_fail_is_named_and_its_rails_are_not_tried(tmp_path: Path) -> None:
    site = Site(tmp_path, groups=(4,), slow={"gpu-2": 0})
    for name in ("gpu-2", "gpu-3"):
        xid = {"type": "GpuXid", "status": "True", "reason": "GpuXidIsNotHealthy", "message": "79"}
        site.api.objects[f"{NODES}/{name}"]["status"]["conditions"].append(xid)
    [row] = site.diagnose().rows
    assert (row.cause, row.where, len(site.jobs)) == ("node", "gpu-2", 2)
    assert row.reasons == ("ended with exit code 3", "gpu-2: condition GpuXid of NVSentinel (79)")


def test_a_group_that_failed_has_the_known_failure_as_its_reason_and_ends_at_its_own_end() -> None:
    first, second = (Group("A", 1, "in_group", (f"worker-{n}", f"worker-{n + 1}")) for n in (1, 3))
    job = configured()
    by_name = {group.name: group for group in (first, second)}
    log = StageLog(by_name.get, job.nodes, job.slots_per_worker, job.max_bytes, lambda nodes: {})
    failure = "worker-0:40:90 [0] init.cc:9 NCCL WARN Mismatched NCCL version detected : rank 8"
    late = f"{groups.TIMED_OUT} 9 s"
    for ended, how, results in (
        (second, f"{groups.ENDED} 3 after 9 s", {}),
        (first, f"{groups.ENDED} 3 after 9 s", {first: Result(None, "image-differs")}),
        (first, late, {first: Result(None, late)}),
    ):
        end = f"{groups.GROUP}{ended.name} {how}"
        for line in (f"{groups.GROUP}{first.name} {groups.BEGINS}", failure, end):
            log.line(line.encode())
        assert log.results == results


@pytest.mark.slow
def test_a_group_that_hangs_is_ended_and_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUP_SECONDS", 15)
    site = Site(tmp_path, groups=(2,), slow={"gpu-2": -1})
    [row] = site.diagnose().rows
    assert (row.where, row.reasons) == ("one of gpu-1, gpu-2", ("timed out after 15 s",))


def test_nodes_that_pods_of_others_hold_are_left_out_before_any_job(tmp_path: Path) -> None:
    site = Site(tmp_path, groups=(4,))
    site.api.hold(holder("gpu-4", "train-0", 8))
    found = site.diagnose()
    assert found.absent == {"gpu-4": "gpu-4: 0 of 8 nvidia.com/gpu are free, held by ml/train-0 (8)"}
    assert sorted(found.healthy) == ["gpu-1", "gpu-2", "gpu-3"]
    assert all("gpu-4" not in group for job in site.jobs for group in job)


@pytest.mark.slow
def test_an_interruption_keeps_what_is_known_and_the_same_command_continues(tmp_path: Path) -> None:
    site = Site(tmp_path, groups=(4,), slow={"gpu-3": 0.5})
    run_job = site.api.run_job

    def interrupted(job: Any, text: str) -> None:
        run_job(job, text)
        whole = site.api.logs.pop()
        first = text.index("begins\n", text.index("/gpu-3") + 1) if len(site.jobs) == 2 else None

        def broken(query: Any) -> Iterator[bytes]:
            yield b"".join(whole(query))[:first]
            if first is not None:
                raise Interrupted(signal.SIGINT)

        site.api.logs.append(broken)

    site.api.run_job = interrupted  # type: ignore[method-assign, assignment]
    with pytest.raises(Interrupted):
        site.diagnose()
    assert site.api.left == []
    kept = State.read(tmp_path / "diagnosis")
    assert kept is not None and {group.stage for group, *_ in kept.results} >= {"A"} and not kept.is_over
    site.api.run_job = run_job  # type: ignore[method-assign]
    assert named(site.diagnose()) == [("node", "gpu-3")]
    stages = [job[0][0] for job in site.jobs]
    assert stages == ["A", "B", "B", "C"]
    assert "continuing: " in "\n".join(site.said)
    assert set(site.jobs[2]) <= set(site.jobs[1])


def test_a_job_that_cannot_be_removed_ends_the_diagnosis(tmp_path: Path) -> None:
    site = Site(tmp_path, groups=(2,))
    site.api.deletes = False
    with pytest.raises(
        LeftBehind, match=r"Fix: busbar nccl clean diagnose-\w+ --namespace \S+ --kubeconfig K$"
    ):
        site.diagnose()
    kept = State.read(tmp_path / "diagnosis")
    assert kept is not None and kept.results and len(site.jobs) == 1


def test_a_finished_diagnosis_begins_anew(tmp_path: Path) -> None:
    site = Site(tmp_path, groups=(2,))
    site.diagnose()
    site.diagnose()
    assert [job[0][0] for job in site.jobs] == ["A", "A"]


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "DEADLINE_SECONDS", stages.FEWEST_SECONDS - 1)


@dataclass(frozen=True)
class Then:
    """What differs when the command is called again: hours, settings, nodes, and those of gpu-2's machine."""

    hours: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    judged: frozenset[str] = frozenset()
    uid: str = "1"
    boot: str = "1"


@pytest.mark.usefixtures("no_time")
@pytest.mark.parametrize(
    ("then", "continued"),
    [
        pytest.param(Then(hours=23), True, id="within a day"),
        pytest.param(Then(hours=25), False, id="a day later"),
        pytest.param(Then(settings={"validation": {"diagnose": {"when": "on_failure"}}}), True, id="when"),
        pytest.param(Then(settings={"validation": {"iterations": 7}}), False, id="iterations"),
        pytest.param(Then(settings={"groups": (1, 1)}), False, id="rail groups"),
        pytest.param(Then(nodes=("gpu-1",)), False, id="other nodes"),
        pytest.param(Then(judged=frozenset({"gpu-1"})), False, id="a release"),
        pytest.param(Then(uid="2"), False, id="a worker was replaced"),
        pytest.param(Then(boot="2"), False, id="a worker has rebooted"),
    ],
)
def test_results_are_continued_that_the_same_runs_would_have_given(
    tmp_path: Path, then: Then, continued: bool
) -> None:
    def called(when: Then) -> Site:
        site = Site(tmp_path, **{"groups": (2,), **when.settings})
        node = site.api.objects[f"{NODES}/gpu-2"]
        node["metadata"]["uid"], node["status"]["nodeInfo"] = when.uid, {"bootID": when.boot}
        site.state(site.scope(*when.nodes, judged=when.judged))
        return site

    called(Then())
    kept = State.read(tmp_path / "diagnosis")
    assert kept is not None
    kept.model_copy(update={"began": kept.began - then.hours * 3600}).write(tmp_path / "diagnosis")
    assert ("continuing: " in "\n".join(called(then).said)) is continued


@pytest.mark.usefixtures("no_time")
def test_it_ends_before_a_job_for_which_no_time_is_left(tmp_path: Path) -> None:
    site = Site(tmp_path, groups=(4,))
    found = site.diagnose()
    assert (site.jobs, found.exit_code) == ([], 2)
    assert found.stopped == "the time of the diagnosis is over: stage A did not run"


def test_lost_lines_of_a_log_name_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, groups=(4,))
    run_job = site.api.run_job

    def lossy(job: Any, text: str) -> None:
        run_job(job, "".join(line for line in text.splitlines(True) if "    sum    " not in line))

    site.api.run_job = lossy  # type: ignore[method-assign, assignment]
    found = site.diagnose()
    assert (named(found), found.healthy, found.exit_code) == ([], (), 2)
    assert "the launcher wrote" in found.stopped


def test_a_judged_node_meets_three_healthy_partners_whatever_its_first_pair_gave(tmp_path: Path) -> None:
    site = Site(tmp_path, groups=(5,), quarantine={"gpu-2": "slow"})
    scope = site.scope(*site.names, judged=frozenset({"gpu-2"}))
    found = site.diagnose(scope)
    assert "gpu-2" in found.healthy
    of_it = [group for group in site.jobs[1] if "gpu-2" in group.split("/")]
    assert len(of_it) == 3
    assert all("gpu-2" not in group or group == "A0/gpu-2" for group in site.jobs[0])
