"""From a pool to a verdict, with a controller and a batch host that answer as Slurm's do.

The log is that of a run of two ranks (tests/unit/collect/launcher_log.py). Time passes only in waits.
"""

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from busbar.fabric.measure.history import entries, read_folder
from busbar.fabric.slurm import keep, why_unusable
from busbar.hosts.inventory import Host
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
from busbar.judge.archive import Archive
from busbar.judge.nccl.verdict import judge_archive
from busbar.manifests import sbatch
from busbar.manifests.launcher import LAUNCHER
from stacks.slurm.package import job, measure
from stacks.slurm.package.measure import MeasureSpec
from stacks.slurm.package.reach import OverSsh
from stacks.slurm.tests.support import compute, facts, slurm
from tests.support.cli import busbar
from tests.support.kube_cluster import Clock
from tests.unit.collect import launcher_log

LOG = launcher_log.text().encode()
# What the ranks of the log call their hosts.
NAMES = {f"gpu_{number + 1}": {"hostname": f"nccl-worker-{number}"} for number in range(2)}
VALIDATION = {
    **{"transport": "socket", "min_bytes": "1M", "max_bytes": "4M", "expected_busbw_gbps": 2.0},
    **{"iterations": 20, "deadline_seconds": 300},
}
POOL = {"gpus": 1, "rails": 1, "rate_gbps": 400}


class Site:
    """The hosts. `statuses`: what is said of the job, one after the other; the last one stays."""

    log_folder = "/var/lib/busbar"

    def __init__(self, *statuses: Mapping[str, Any], log: bytes = LOG, **nodes: str) -> None:
        self.clock = Clock()
        self.statuses, self.log = [dict(each) for each in statuses] or [ENDED], log
        self.nodes = dict.fromkeys(("gpu-1", "gpu-2"), ("idle", ""))
        for name, text in nodes.items():
            state, _, reason = text.partition("|")
            self.nodes[name.replace("_", "-")] = (state, reason)
        self.submitted: list[dict[str, str]] = []
        self.scripts: list[str] = []
        self.cancelled: list[str] = []
        self.dead: Sequence[str] = ()
        self.free, self.chunk = 10**9, 1 << 20
        self.refusals: dict[str, int] = {}
        self.said: list[str] = []

    def ask(
        self, verb: str, payload: Mapping[str, str] | None = None, *, node: str | None = None, **values: str
    ) -> dict[str, Any]:
        if self.refusals.get(verb, 0):
            self.refusals[verb] -= 1
            raise ScriptError("connection lost", node or "ctl")
        self.scripts += [payload["script"]] if payload else []
        answer: Callable[..., dict[str, Any]] = getattr(self, f"_{verb}")
        return answer(**values)

    def gone(self, nodes: Sequence[str]) -> dict[str, str]:
        return {name: "is not responding" for name in nodes if name in self.dead}

    def _nodes(self) -> dict[str, Any]:
        listed = {name: {"state": state, "reason": why} for name, (state, why) in self.nodes.items()}
        return {"nodes": listed}

    def _submit(self, **values: str) -> dict[str, Any]:
        self.submitted.append(values)
        return {"job_id": "7"}

    def _status(self, job_id: str) -> dict[str, Any]:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def _cancel(self, job_id: str) -> dict[str, Any]:
        self.cancelled.append(job_id)
        return {"job_id": job_id}

    def _read(self, log: str, offset: str) -> dict[str, Any]:
        data = self.log[int(offset) : int(offset) + self.chunk]
        return {"free_bytes": self.free, "data": base64.b64encode(data).decode()}


def status(state: str, reason: str = "None", **more: Any) -> dict[str, Any]:
    known = {"known": True, "state": state, "reason": reason, "batch_host": "gpu-1", "exit_code": "0:0"}
    return {**known, "restarts": "0", "submitted": "2026-01-01T00:00:00Z", "nodes": {}, **more}


ENDED = status("COMPLETED")
RUNNING = status("RUNNING")
GONE = {"gpu-2": {"state": "down*", "reason": "Not responding"}}


def request(folder: Path, **changes: Any) -> MeasureSpec:
    made = slurm(pools={"lab": POOL}, validation={**VALIDATION, **changes.pop("validation", {})}, **changes)
    spec = job.measure_spec(made, "lab", facts(made, **NAMES), str(folder / "lab"))
    return MeasureSpec.model_validate({**spec, "login": {}})


def measured(site: Site, folder: Path, **changes: Any) -> dict[str, Any]:
    return measure.measure(request(folder, **changes), site, site.clock, site.said.append)


@pytest.mark.parametrize("chunk", [1 << 20, 97], ids=["whole", "in pieces"])
def test_a_job_that_ended_well_is_judged_by_its_log(tmp_path: Path, chunk: int) -> None:
    site = Site(status("PENDING", "Priority", batch_host=""), RUNNING, RUNNING, ENDED)
    site.chunk = chunk
    found = measured(site, tmp_path, validation={"image": "/images/nccl.sqsh"})
    assert (found["verdict"], found["reasons"]) == ("pass", [])
    assert (found["busbw_gbps"], found["nodes_measured"]) == (2.0, ["gpu-1", "gpu-2"])
    assert found["measured_at"] == "2026-01-01T00:00:00Z"
    [submitted], [script] = site.submitted, site.scripts
    assert (submitted["partition"], submitted["nodes"], submitted["count"]) == ("lab", "gpu-1,gpu-2", "2")
    assert submitted["log"].startswith("/var/lib/busbar/nccl-lab-")
    assert "--container-image=/images/nccl.sqsh" in script
    assert site.cancelled == []
    assert b"".join(Archive(tmp_path / "lab").log_lines()) == LOG
    assert (tmp_path / "lab" / "report.html").exists()


def test_the_log_of_an_earlier_job_of_the_same_name_is_not_read(tmp_path: Path) -> None:
    """It is there until slurmd opens that of the new job, after the prolog."""

    class WithProlog(Site):
        def _read(self, log: str, offset: str) -> dict[str, Any]:
            of_job = self.submitted[0]["log"].replace("%j", "6")
            self.log = b"the log of job 6\n" if log == of_job else LOG
            return super()._read(log, offset)

    assert measured(WithProlog(), tmp_path)["verdict"] == "pass"


def test_a_measurement_is_in_the_history_of_its_pool_and_not_in_the_state(tmp_path: Path) -> None:
    of_pool = tmp_path / "lab"
    dead = Site(gpu_1="down*|Not responding", gpu_2="down*|Not responding")
    keep(measured(dead, tmp_path), of_pool, print)
    assert read_folder(tmp_path) == [], "a job that was never submitted is no measurement"
    kept = [keep(measured(Site(), tmp_path), of_pool, print)]
    kept.append(keep(measured(Site(), tmp_path, validation={"tolerance": 0.2}), of_pool, print))
    assert not any("record" in each for each in kept)
    # The log was judged twice, and is one measurement.
    [entry] = entries(read_folder(tmp_path))
    record = entry.run.record
    assert (record.kind, record.pool, entry.run.nodes) == ("update", "lab", ("gpu-1", "gpu-2"))
    assert (entry.run.result.busbw_gbps, record.complete, record.outcome.succeeded) == (2.0, True, True)
    assert (record.settings["max_bytes"], record.settings["tolerance"]) == ("4194304", "0.2")


def test_lines_written_while_the_job_ends_are_read_also_without_a_newline(tmp_path: Path) -> None:
    whole = LOG.rstrip(b"\n")

    class Ending(Site):
        def _status(self, job_id: str) -> dict[str, Any]:
            found = super()._status(job_id)
            self.log = whole if found["state"] == "COMPLETED" else self.log
            return found

    assert measured(Ending(RUNNING, RUNNING, ENDED, log=LOG[:900]), tmp_path)["verdict"] == "pass"
    assert b"".join(Archive(tmp_path / "lab").log_lines()) == whole


def test_another_expectation_is_judged_by_the_kept_log_and_nothing_runs(tmp_path: Path) -> None:
    measured(Site(), tmp_path)
    again = Site()
    found = measured(again, tmp_path, validation={"expected_busbw_gbps": 5.0})
    assert (found["verdict"], found["expected_gbps"]) == ("fail", 5.0)
    assert (found["nodes_measured"], found["measured_at"]) == (["gpu-1", "gpu-2"], "2026-01-01T00:00:00Z")
    assert again.submitted == []


def test_a_log_from_before_the_step_is_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a destroy, or a time without the pool or its validation: the request is the same then."""
    site = Site()
    monkeypatch.setattr(measure, "over_ssh", lambda *_: nullcontext(site))
    text = request(tmp_path).model_dump_json(exclude={"script"})
    jobs: list[int] = []
    for previous in ("", "{}", ""):
        site.statuses = [status("COMPLETED", submitted=f"2026-01-0{len(jobs) + 1}T00:00:00Z")]
        monkeypatch.setenv("PULUMI_COMMAND_STDOUT", previous)
        done = busbar("slurm", "collect", stdin=text)
        assert done.exit_code == 0 and '"verdict":"pass"' in done.stdout, done.output
        jobs.append(len(site.submitted))
    assert jobs == [1, 1, 2]
    assert [entry.run.at.day for entry in entries(read_folder(tmp_path))] == [1, 3], "both are in the history"


def test_the_job_s_name_changes_with_what_runs_where_and_not_with_the_expectation() -> None:
    made = slurm(pools={"lab": POOL}, validation=VALIDATION)
    name = job.measure_spec(made, "lab", facts(made), "x")["job"]
    later = slurm(pools={"lab": POOL}, validation={**VALIDATION, "tolerance": 0.2})
    assert job.measure_spec(later, "lab", facts(later), "y")["job"] == name
    newer = facts(made, gpu_1={"slurm": "24.11.6-1"})
    more = slurm(pools={"lab": POOL}, validation=VALIDATION, hosts=compute({}, {}, {}))
    other_driver = facts(made, gpu_1={"driver": "590.1"})
    assert job.measure_spec(made, "lab", facts(made), "x", again="now")["job"] != name
    replaced = facts(made, gpu_1={"machine": "another"})
    others = [(made, newer), (more, facts(more)), (made, other_driver), (made, replaced)]
    for change in ({"run": 2}, {"iterations": 30}, {"env": {"NCCL_X": "1"}}):
        changed = slurm(pools={"lab": POOL}, validation={**VALIDATION, **change})
        others.append((changed, facts(changed)))
    assert name not in [job.measure_spec(each, "lab", found, "x")["job"] for each, found in others]


@pytest.mark.parametrize(
    ("states", "is_usable"),
    [
        ("idle mixed allocated completing IDLE+CLOUD", True),
        ("idle* allocated* down DOWN* drained DRAINING fail failing inval", False),
        ("unknown boot rebooted powered_down powering_up maint reserved", False),
    ],
)
def test_a_node_that_starts_no_jobs_is_named_with_slurm_s_words(states: str, is_usable: bool) -> None:
    for state in states.split():
        assert why_unusable({"state": state, "reason": "fan"}) == ("" if is_usable else f"{state}: fan")
        assert why_unusable({"state": state, "reason": ""}) == ("" if is_usable else state)
    assert why_unusable(None) == "not known to Slurm"


def test_another_text_of_the_script_makes_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    made = slurm(pools={"lab": POOL}, validation=VALIDATION)
    before = job.measure_spec(made, "lab", facts(made), "x")
    monkeypatch.setattr(sbatch, "PROGRAM_FIX", "another text")
    assert job.measure_spec(made, "lab", facts(made), "x") == before
    monkeypatch.setattr("busbar.manifests.sbatch.LAUNCHER", LAUNCHER + 1)
    assert job.measure_spec(made, "lab", facts(made), "x")["job"] != before["job"]


CUT = LOG[:900]
PENDING = "job: job 7 timed out after 100 s: is pending: "
FAILED = status("FAILED", exit_code="1:0")
ALWAYS = 10**6
# Why there is no verdict -> what is said of the job, what else is changed in the site, the reason, and
# whether the job is cancelled; None: it was never submitted.
NO_VERDICT: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str, bool | None]] = {
    "pending": ([status("PENDING", "Resources", batch_host="")], {},
                f"{PENDING}Resources. Fix: squeue --start -j 7; sinfo -R", True),
    "pending for a node": ([status("PENDING", "ReqNodeNotAvail", batch_host="", nodes=GONE)], {},
                           f"{PENDING}ReqNodeNotAvail; gpu-2 is down*: Not responding", True),
    "not known": ([{"known": False}], {}, "job: slurmctld does not know job 7", False),
    "cancelled before it ran": ([status("CANCELLED", batch_host="")], {},
                                "job: Slurm job 7 ended as CANCELLED", False),
    "a node failed": ([RUNNING, RUNNING, status("NODE_FAIL", nodes=GONE)], {},
                      "NODE_FAIL (exit code 0:0); gpu-2 is down*: Not responding", False),
    "cancelled": ([RUNNING, RUNNING, status("CANCELLED")], {},
                  "Slurm job 7 ended as CANCELLED (exit code 0:0)", False),
    "queued again": ([RUNNING, RUNNING, status("COMPLETED", restarts="1")], {},
                     "ended as COMPLETED (exit code 0:0), it was queued again", False),
    "failed": ([RUNNING, RUNNING, status("FAILED", "NonZeroExitCode", exit_code="1:0", nodes=GONE)], {},
               "ended as FAILED (exit code 1:0, NonZeroExitCode); gpu-2 is down*", False),
    "forgotten": ([RUNNING, RUNNING, {"known": False}], {}, "slurmctld has forgotten job 7", False),
    "a host died": ([RUNNING, RUNNING, FAILED], {"dead": ("gpu-2",)}, "gpu-2 is not responding", False),
    "the disk is full": ([RUNNING, FAILED], {"free": 0},
                         "the disk of /var/lib/busbar on gpu-1 is full", False),
    "it does not end": ([RUNNING], {}, "job 7 has not ended after 420 s", True),
    "the batch host is silent": ([RUNNING], {"refusals": {"read": ALWAYS}},
                                 "the log on gpu-1 cannot be read: gpu-1: connection lost", True),
    "the controller is silent": ([], {"refusals": {"nodes": 1}},
                                 "job: the controller is not responding: ctl: connection lost", None),
    "it refuses the job": ([], {"refusals": {"submit": 1}},
                           "job: it cannot be submitted: ctl: connection lost", None),
    "too few nodes": ([], {"nodes": {"gpu-1": ("idle", ""), "gpu-2": ("drained", "bad cable")}},
                      "job: gpu-2 is drained: bad cable", None),
}  # fmt: skip


@pytest.mark.parametrize("why", NO_VERDICT)
def test_without_a_whole_log_of_an_undisturbed_job_there_is_no_verdict(tmp_path: Path, why: str) -> None:
    statuses, changes, reason, is_cancelled = NO_VERDICT[why]
    site = Site(*statuses, log=CUT)
    vars(site).update(changes)
    found = measured(site, tmp_path)
    assert found["verdict"] == "unknown"
    assert RUNNING in statuses or "nodes_measured" not in found
    assert any(reason in each for each in found["reasons"]), found["reasons"]
    assert bool(site.cancelled) >= bool(is_cancelled)
    assert bool(site.submitted) is (is_cancelled is not None)
    assert Archive(tmp_path / "lab").complete_log_of is None
    assert why != "too few nodes" or "too few nodes can be measured" in found["reasons"][1]


def test_a_job_that_failed_by_itself_is_a_failure(tmp_path: Path) -> None:
    failed = launcher_log.text(exit_code=3).encode()
    found = measured(Site(RUNNING, status("FAILED", exit_code="3:0"), log=failed), tmp_path)
    assert found["verdict"] == "fail"
    assert any("all_reduce ended with exit code 3" in each for each in found["reasons"])


def test_a_host_that_dies_under_a_running_job_is_named_before_slurm_notices(tmp_path: Path) -> None:
    site = Site(RUNNING, log=CUT)
    site.clock.at(20, lambda: setattr(site, "dead", ("gpu-2",)))
    found = measured(site, tmp_path)
    assert (found["verdict"], site.cancelled[:1]) == ("unknown", ["7"])
    assert any("gpu-2 is not responding, and job 7 waits for it" in each for each in found["reasons"])
    assert site.clock.now() < 120


def test_a_host_that_is_silent_for_a_moment_ends_nothing(tmp_path: Path) -> None:
    site = Site(RUNNING, log=CUT)
    site.clock.at(20, lambda: setattr(site, "dead", ("gpu-2",)))
    site.clock.at(50, lambda: setattr(site, "dead", ()))
    site.clock.at(100, lambda: setattr(site, "log", LOG))
    site.clock.at(102, lambda: site.statuses.__setitem__(0, ENDED))
    assert measured(site, tmp_path)["verdict"] == "pass"


def test_logins_that_die_are_made_again(tmp_path: Path) -> None:
    site = Site(RUNNING, RUNNING, ENDED)
    site.refusals = {"read": 3, "status": 3}
    assert measured(site, tmp_path)["verdict"] == "pass"
    long = Site(RUNNING, log=CUT)
    long.clock.at(200, lambda: long.refusals.update(read=3))
    long.clock.at(220, lambda: long.__dict__.update(log=LOG, statuses=[ENDED]))
    assert measured(long, tmp_path / "long")["verdict"] == "pass"


def test_a_drained_node_may_be_left_out_where_the_fraction_that_is_needed_is_left(tmp_path: Path) -> None:
    half = {"min_nodes_fraction": 0.5}
    site = Site(gpu_3="drained|bad cable")
    found = measured(site, tmp_path, hosts=compute({}, {}, {}), validation=half)
    assert (found["verdict"], found["nodes_measured"]) == ("pass", ["gpu-1", "gpu-2"])
    assert "left out: gpu-3 is drained: bad cable" in site.said
    exactly = Site(gpu_2="drained|bad cable")
    measured(exactly, tmp_path, validation=half)
    assert [(each["nodes"], each["count"]) for each in exactly.submitted] == [("gpu-1", "1")]


def test_a_signal_cancels_the_job_or_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stays = Site(RUNNING, log=CUT)
    stays.refusals = {"cancel": ALWAYS}
    assert measured(stays, tmp_path / "stays")["verdict"] == "unknown"
    assert "error: job 7 could not be cancelled: ctl: connection lost. Fix: scancel 7" in stays.said

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    site = Site(RUNNING, log=CUT)
    monkeypatch.setattr(site.clock, "pause", interrupt)
    with pytest.raises(KeyboardInterrupt):
        measured(site, tmp_path)
    assert site.cancelled == ["7"]


def test_a_kept_log_is_judged_again_from_its_folder_alone(tmp_path: Path) -> None:
    found = measured(Site(), tmp_path)
    archive = Archive(tmp_path / "lab")
    judged = judge_archive(archive)
    assert judged and (judged[1].verdict, judged[1].busbw_gbps) == ("pass", found["busbw_gbps"])
    # The process ended between the end of the log and the verdict.
    archive.mark_complete(archive.record()["job_uid"])
    assert measured(Site(), tmp_path)["reasons"] == ["job: how the job ended was not recorded"]


def test_each_question_has_its_values_and_a_host_without_a_good_answer_is_gone(tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []

    class Remote:
        async def run(self, host: Host, *question: Any, seconds: float) -> dict[str, Any]:
            asked.append((*question, seconds))
            if host.name == "gpu-2":
                raise UnreachableError(host, OSError("no route"))
            if host.name == "gpu-4":
                raise ScriptError("lost", host.name)
            return {"active": host.name == "gpu-1"}

    spec = request(tmp_path, hosts=compute({}, {}, {}, {}))
    with asyncio.Runner() as runner:
        reach = OverSsh(runner, cast(Hosts, Remote()), spec.controller, spec.hosts)
        silent, stopped = "is not responding", "has no running slurmd"
        assert reach.gone([*spec.hostnames]) == {"gpu-2": silent, "gpu-3": stopped, "gpu-4": silent}
        asked.clear()
        assert reach.ask("submit", {"script": "x"}, job_name="n", count="2") == {"active": False}
        assert reach.ask("read", node="gpu-1", log="/x") == {"active": True}
    submit = {"NODE_NAME": "ctl", "VERB": "submit", "JOB_NAME": "n", "COUNT": "2"}
    read = {"NODE_NAME": "gpu-1", "VERB": "read", "LOG": "/x"}
    assert asked == [("slurm-job", submit, {"script": "x"}, 60), ("slurm-job", read, None, 60)]
