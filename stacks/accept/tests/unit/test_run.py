"""The run: stages that measure on a cluster, are continued after any end, and become one document."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from busbar.exits import Misuse, NoVerdict
from busbar.finding import Finding
from busbar.hosts.inventory import Host, Inventory
from busbar.kube.client import JsonObject
from busbar.kube.wait import TimedOut
from busbar.preflight.report import Report
from busbar.preflight.spec import Answer
from busbar.preflight.survey import Answers, Ask
from stacks.accept.package import commands, document
from stacks.accept.package import criteria as contract
from stacks.accept.package import running as stage_runs
from stacks.accept.package import subjects as stages
from stacks.accept.package.evidence import Evidence
from stacks.accept.package.running import Planned, Running, run_stage
from stacks.accept.package.site import COLLECTIVES, describe, validation_of
from stacks.accept.package.subjects import inventory as asking
from stacks.accept.package.subjects.collectives import RUNS
from stacks.accept.tests.unit import made
from tests.support.cli import busbar
from tests.unit.fabric.measure.foreign import MPIJOBS, Foreign, gpu_node, holder, preempt

TIMES = ("2026-11-24T06:00:00Z", "2026-11-24T07:00:00Z")


class Gpus(Foreign):
    """A cluster whose jobs print what two healthy H100 workers print."""

    def __init__(self) -> None:
        super().__init__(*(gpu_node(name) for name in made.WORKERS))
        self.runs = self.measure
        self.environments: list[dict[str, str]] = []

    def measure(self, job: JsonObject) -> None:
        launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
        env = {each["name"]: each["value"] for each in launcher["env"]}
        self.environments.append(env)
        warn = env["NCCL_DEBUG"] == "WARN"
        names = [name for name in COLLECTIVES for _ in range(RUNS[name] - 1 if warn else 1)]
        hosts = [f"{job['metadata']['name']}-worker-{number}" for number in range(2)]
        peaks = {name: [made.expected(name)] * RUNS[name] for name in COLLECTIVES}
        self.run_job(job, made.log(names, hosts, peaks, warn=warn))


@pytest.fixture
def gpus() -> Gpus:
    return Gpus()


@pytest.fixture
def on(gpus: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    times = iter(TIMES * 9)
    monkeypatch.setattr(stage_runs, "now", lambda: next(times))
    return made.running(tmp_path, api=gpus)


def planned(name: str) -> Planned:
    return next(each for each in stages.STAGES if each.name == name)


def test_stages_of_the_fabric_leave_logs_that_pass_and_nothing_else(on: Running, gpus: Gpus) -> None:
    run_stage(planned("collectives"), on)
    run_stage(planned("repeats"), on)
    found = {row["id"]: row["result"] for row in document.contents(on.folder)[0]["rows"]}
    wrong = {
        row: result
        for row, result in found.items()
        if row.startswith(("collectives", "repeats")) and result != "pass"
    }
    assert wrong == {}
    assert gpus.left == []
    kept = sorted(path.name for path in (on.folder / "evidence/repeats/h100").iterdir())
    assert kept == ["nccl.log.zst", "source.json"], "verdict and page are made again from these"
    assert [env["NCCL_RUN_DIAGNOSTICS"] for env in gpus.environments] == ["1", "1"]


def test_a_stage_waits_for_gpus_that_pods_hold_and_ends_without_a_result(on: Running, gpus: Gpus) -> None:
    gpus.hold(holder("worker-2", "train", 8))
    with pytest.raises(NoVerdict, match=r"stage collectives: timed out after 180 s: .*worker-2") as ended:
        run_stage(planned("collectives"), on)
    is_late = isinstance(ended.value.__cause__, TimedOut)
    assert ("the same command continues here" in str(ended.value), is_late) == (True, True)
    assert Evidence(on.folder).stage("collectives") is None and gpus.environments == []
    on.clock.at(60, lambda: gpus.objects.pop("/api/v1/namespaces/ml/pods/train"))  # type: ignore[attr-defined]
    stage_runs.now()  # the end that the first call did not reach
    run_stage(planned("collectives"), on)
    assert Evidence(on.folder).stage("collectives") is not None


def test_a_node_that_cannot_run_the_job_is_left_out_and_its_row_fails(on: Running, gpus: Gpus) -> None:
    gpus.objects["/api/v1/nodes/worker-2"] = gpu_node("worker-2", ready=False)
    run_stage(planned("collectives"), on)
    found = made.result(on.folder, "collectives.h100.nodes")
    assert found.result != "pass"


def preempting(api: Any, runs: Callable[[JsonObject], object]) -> Callable[[JsonObject], None]:
    """A job, of which a pod makes room for other pods."""

    def run(job: JsonObject) -> None:
        runs(job)
        api.logs.clear()
        preempt(api, job)

    return run


def test_a_stage_that_made_room_for_other_pods_is_repeated_by_the_next_call(on: Running, gpus: Gpus) -> None:
    idle = replace(on, idle=True)
    idle.__dict__["api"] = gpus

    gpus.runs = preempting(gpus, gpus.measure)
    with pytest.raises(NoVerdict, match=r"stage collectives: .*made room for other pods"):
        run_stage(planned("collectives"), idle)
    assert Evidence(on.folder).stage("collectives") is None and gpus.left == []
    gpus.runs = gpus.measure
    stage_runs.now()  # the end that the first call did not reach
    run_stage(planned("collectives"), idle)
    assert made.result(on.folder, "collectives.h100.proof").result == "pass"


def test_a_pool_whose_workers_are_all_in_quarantine_is_not_run(on: Running, gpus: Gpus) -> None:
    pool = on.pools["h100"].model_copy(update={"workers": ()})
    site = on.begun.site.model_copy(update={"pools": {"h100": pool}})
    empty = replace(on, begun=on.begun.model_copy(update={"site": site}))
    run_stage(planned("repeats"), empty)
    found = made.result(on.folder, "repeats.h100.log")
    assert (found.result, found.reason) == ("not run", "every worker is in quarantine")
    run_stage(planned("inventory"), empty)
    ended = Evidence(on.folder).stage("inventory")
    assert ended and ended.notes == {}, "its row counts the nodes that are left"


def test_a_stage_begins_anew_after_its_process_was_killed(on: Running, gpus: Gpus) -> None:
    left = on.at("collectives") / "h100"
    left.mkdir(parents=True)
    (left / "nccl.log.zst").write_text("half a log")
    (left / ".nccl.log.zst.7").write_text("")
    job = {"labels": {"busbar/nccl-run": f"{made.RUN_NAME}-c0-ab12"}, "namespace": "ns", "name": "nccl-x"}
    gpus.add(f"{MPIJOBS}/namespaces/ns/mpijobs/nccl-x", {"metadata": job})
    run_stage(planned("collectives"), on)
    assert gpus.left == []
    assert made.result(on.folder, "collectives.h100.proof").result == "pass"


@pytest.fixture
def ask(on: Running, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run the inventory, of which these workers do not answer; the names of those that are asked."""

    def run(*silent: str) -> list[str]:
        asked: list[str] = []

        async def answers(login: object, hosts: list[Host], ask: Ask) -> Answers:
            asked.extend(host.name for host in hosts)
            good = Answer(Report.model_validate(made.host(1)), (0.0, 1.0))
            lost = Finding(("worker",), "no route to host", "check the cable")
            return {host.name: lost if host.name in silent else good for host in hosts}

        monkeypatch.setattr(asking, "query_all", answers)
        on.__dict__["spec"] = SimpleNamespace(login=None, hosts=Inventory.of(on.cluster).hosts)
        run_stage(planned("inventory"), on)
        return asked

    return run


def test_the_inventory_asks_all_but_the_quarantined_and_keeps_why_one_is_silent(
    on: Running, ask: Any
) -> None:
    assert ask("worker-2") == list(made.WORKERS)
    found = made.judged(on.folder, "inventory.h100.nodes", "fail", "worker-2: no route to host")
    assert found.value == 1


def test_an_inventory_that_no_worker_answers_is_repeated(on: Running, ask: Any) -> None:
    with pytest.raises(NoVerdict, match="no worker answers: worker-1: no route to host"):
        ask(*made.WORKERS)
    assert Evidence(on.folder).stage("inventory") is None


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def site(stack: Path, monkeypatch: pytest.MonkeyPatch, healthy: Path) -> Callable[..., Any]:
    """`busbar accept run` on a healthy cluster; KILLED: before which steps its process ends."""
    monkeypatch.setattr("secrets.token_hex", lambda length: made.RUN_NAME.removeprefix("accept-"))
    design = stack / "cabling.csv"
    design.write_text(made.design(made.cabling()))
    steps: list[str] = []
    killed: set[int] = set()
    ends: list[str] = []
    monkeypatch.setattr(stage_runs, "now", lambda: ends.pop() if ends else made.BEGAN)

    def step(name: str) -> None:
        steps.append(name)
        if len(steps) in killed:
            raise Killed

    def stage(name: str) -> Planned:
        def run(on: Running) -> dict[str, str]:
            step(f"{name} begins")
            for path in sorted((healthy / "evidence" / name).rglob("*")):
                if path.is_file() and path.name != "stage.json":
                    to = on.folder / path.relative_to(healthy)
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, to)
                    step(f"{name} has written {path.name}")
            ends.append(made.ENDED)
            return {}

        return Planned(name, run, True, lambda nodes: 60)

    monkeypatch.setattr(stages, "STAGES", tuple(stage(each.name) for each in stages.STAGES))

    def run(*words: str, at: int | None = None) -> Any:
        killed.clear()
        killed.update({at} if at else ())
        steps.clear()
        ends.clear()
        return busbar("accept", "run", "prod", "--soak", "1h", "--cabling", str(design), *words)

    run.home = stack / ".busbar/prod/acceptance"  # type: ignore[attr-defined]
    return run


def rows(home: Path) -> list[Any]:
    (done,) = [path for path in home.iterdir() if path.is_dir()]
    found: list[Any] = json.loads((done / "acceptance.json").read_text())["rows"]
    return found


def test_a_run_that_was_killed_ten_times_ends_with_the_rows_of_one_that_was_not(site: Any) -> None:
    first = site()
    assert (first.exit_code, " rows (9 not required): " in first.stdout.splitlines()[-1]) == (0, True)
    whole, ended = rows(site.home), set[int]()
    shutil.rmtree(site.home)
    chance = random.Random(46)
    for _ in range(10):
        with pytest.raises(Killed):
            site(at=chance.randrange(1, 5))
        ended |= {mark.stat().st_mtime_ns for mark in site.home.glob("unfinished/evidence/inventory/stage*")}
    assert len(ended) == 1, "a stage that has ended is not run again"
    done = site()
    assert (done.exit_code, "continuing accept-0a1b2c" in done.stderr) == (0, True)
    assert rows(site.home) == whole


@pytest.mark.parametrize(
    ("option", "before", "after", "other"),
    [
        ("--criteria", "threshold: 90.0", "threshold: 80.0", "other criteria"),
        ("--cabling", "mlx5_1", "mlx5_9", "another --cabling"),
        ("--dcgm-image", "dcgm:3", "dcgm:4", "another --dcgm-image"),
    ],
)
def test_a_run_is_continued_with_its_own_criteria_and_options_only(
    site: Any, stack: Path, option: str, before: str, after: str, other: str
) -> None:
    with pytest.raises(Killed):
        site(at=2)
    kept = {"--criteria": site.home / "unfinished/acceptance.yaml", "--cabling": stack / "cabling.csv"}
    changed = stack / "changed"
    changed.write_text(kept[option].read_text().replace(before, after) if option in kept else "")
    done = site(option, str(changed) if option in kept else after)
    assert (done.exit_code, f"began with {other}. Fix: move" in done.stderr) == (64, True)


def test_a_stage_without_a_row_is_not_run(site: Any, tmp_path: Path) -> None:
    rows_ = "- {id: inventory.h100.ecc}\n- {id: inventory.h100.health}\n"
    (tmp_path / "few.yaml").write_text(f"version: 1\nrows:\n{rows_}")
    done = site("--criteria", str(tmp_path / "few.yaml"))
    assert done.exit_code == 0, done.output
    assert "taken out of the criteria: collectives.h100.proof" in done.stdout


def test_only_one_run_of_a_stack_works_at_a_time(site: Any) -> None:
    with commands._alone(site.home):
        done = site()
    assert (done.exit_code, "another busbar accept run works" in done.stderr) == (64, True)


def test_a_stage_without_a_result_ends_with_2(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good = stages.STAGES

    def busy(on: Running) -> dict[str, str]:
        raise NoVerdict("pods hold the GPUs")

    monkeypatch.setattr(stages, "STAGES", (good[0], Planned("collectives", busy, True, lambda nodes: 60)))
    done = site()
    assert (done.exit_code, "stage collectives: pods hold the GPUs" in done.stderr) == (2, True)
    monkeypatch.setattr(stages, "STAGES", good)
    assert site().exit_code == 0


def test_the_plan_names_minutes_gpus_and_node_minutes_and_starts_nothing(stack: Path) -> None:
    done = busbar("accept", "plan", "prod", "--soak", "72h")
    assert done.exit_code == 0
    table = {words[0]: words[1:] for line in done.stdout.splitlines() if (words := line.split())}
    assert table["collectives"] == ["2", "4", "16", "8"], "two nodes of 8 GPUs for 4 minutes"
    assert table["inventory"][2:] == ["0", "0"]
    minutes, held, cost = map(int, table["soak"][1:])
    assert (held, cost // minutes, 72 * 60 < minutes < 73 * 60) == (16, 2, True)
    assert "Nothing is left running" in done.stdout and "its job goes on" in done.stdout
    assert list(stack.iterdir()) == []


def test_the_criteria_are_printed_and_can_be_read_again(stack: Path, tmp_path: Path) -> None:
    from jsonschema import Draft202012Validator

    _, facts = made.site_of()
    printed = busbar("accept", "criteria", "--for", "prod", "--soak", "1h").stdout
    (tmp_path / "acceptance.yaml").write_text(printed)
    assert contract.read(tmp_path / "acceptance.yaml", facts) == contract.default(facts)
    schema = json.loads(busbar("accept", "criteria").stdout)
    assert schema["title"] == "acceptance.yaml"
    Draft202012Validator(schema).validate(yaml.safe_load(printed))


def test_the_value_of_the_stack_s_first_collective_stays_with_it() -> None:
    cluster, _ = made.site_of()
    given = {"collectives": ["alltoall"], "expected_busbw_gbps": 70.0}
    found = validation_of(cluster.validation_of("h100").model_copy(update=given))
    assert found.collectives[0] == "all_reduce" and found.expected_busbw_gbps is None
    assert found.expected_by_collective == {"alltoall": 70.0}


@pytest.fixture
def foreign(gpus: Gpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[str, ...]:
    """The words that name a cluster that busbar did not make."""
    (tmp_path / "config").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Gpus, "server", "https://k8s.example.com:6443", raising=False)
    monkeypatch.setattr("busbar.kube.client.connect", lambda environment: gpus)
    monkeypatch.setattr(stage_runs, "connect", lambda environment: gpus)
    monkeypatch.setattr(stage_runs, "now", lambda: TIMES[0])
    return "--kubeconfig", str(tmp_path / "config")


def test_a_foreign_cluster_is_accepted_without_hosts(
    gpus: Gpus, foreign: tuple[str, ...], tmp_path: Path
) -> None:
    printed = busbar("accept", "criteria", *foreign)
    assert printed.exit_code == 0, printed.output
    rows = yaml.safe_load(printed.stdout)
    stages_ = ("inventory", "cabling", "collectives", "repeats", "stress")
    rows["rows"] = [row for row in rows["rows"] if row["id"].startswith(stages_)]
    (tmp_path / "acceptance.yaml").write_text(yaml.safe_dump(rows))
    done = busbar("accept", "run", *foreign, "--criteria", "acceptance.yaml")
    assert done.exit_code == 2, done.output
    [found] = (tmp_path / ".busbar/k8s-example-com/acceptance").glob("2*/acceptance.json")
    results = {row["id"]: (row["result"], row["reason"]) for row in json.loads(found.read_text())["rows"]}
    assert results["collectives.gpus.proof"][0] == "pass"
    assert results["inventory.gpus.nodes"] == results["cabling.gpus.rails"] == ("not run", "no login")
    assert results["stress.gpus.diag"] == ("not run", "no login, and no --dcgm-image")
    assert gpus.left == []


def test_with_a_list_of_hosts_their_logins_are_used(gpus: Gpus, tmp_path: Path) -> None:
    gpus.server = "https://k8s.example.com:6443"
    key = made.site_of()[0].hosts.workers[0].host_key
    listed = [
        {"name": name, "role": "worker", "address": f"192.0.2.{number}", "host_key": key}
        for number, name in enumerate(made.WORKERS, 1)
    ]
    (tmp_path / "hosts.json").write_text(json.dumps({"version": 1, "hosts": listed}))
    cluster = describe(gpus, {}, tmp_path, tmp_path / "hosts.json").cluster()  # type: ignore[arg-type]
    assert [host.address for host in cluster.hosts.workers] == ["192.0.2.1", "192.0.2.2"]
    (tmp_path / "hosts.json").write_text(json.dumps({"version": 1, "hosts": listed[:1]}))
    with pytest.raises(Misuse, match="Nodes are missing: worker-2"):
        describe(gpus, {}, tmp_path, tmp_path / "hosts.json")  # type: ignore[arg-type]


def test_a_run_is_of_a_stack_or_of_a_kubeconfig(foreign: tuple[str, ...]) -> None:
    for words in (("prod", *foreign), ()):
        done = busbar("accept", "run", *words)
        assert (done.exit_code, "either STACK or --kubeconfig" in done.stderr) == (64, True)
