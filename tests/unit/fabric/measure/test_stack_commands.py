"""`busbar measure` and `busbar history` as they are typed."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.cli.stackfile import SecretError
from busbar.fabric.commands import measure
from busbar.fabric.measure.history import FILE, Run, read_folder
from busbar.kube import wait
from busbar.kube.client import ApiError, JsonObject
from busbar.operations.verify import UnknownState
from tests.support.cli import busbar
from tests.support.clusters import all_operators, site, stack_file
from tests.support.kube_cluster import Clock, container
from tests.unit.collect import launcher_log
from tests.unit.fabric.measure.foreign import SETTINGS, Foreign, gpu_node, holder, preempt
from tests.unit.fabric.measure.test_history import STEADY, run, summary

FOLDER = Path(".busbar/mysite")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Foreign:
    """A stack of two pools of two workers with one GPU; time only passes while a command waits."""
    monkeypatch.chdir(tmp_path)
    validation = {**SETTINGS, "topology_file": None}
    found = site(workers={"h100": 2, "b200": 2}, validation=validation, **all_operators(enabled=True))
    for pool in found["pools"].values():
        pool |= {"gpus": 1, "gpu_model": None}
    stack_file(tmp_path, found, "mysite")
    made = Foreign(*(gpu_node(f"gpu-{number}", gpus=1) for number in (1, 2, 3, 4)))
    monkeypatch.setattr("busbar.cli.stackfile.kubeconfig_of", lambda file: "kubeconfig")
    monkeypatch.setattr("busbar.operations.verify.connect", lambda *_: made)
    monkeypatch.setattr(wait, "SystemClock", Clock)
    return made


def records(folder: Path = FOLDER) -> list[Run]:
    return read_folder(folder)


def slow(cluster: Foreign, *nodes: str) -> None:
    """Jobs on one of these nodes reach half of the bandwidth."""

    def runs(job: JsonObject) -> None:
        is_slow = any(node in json.dumps(job) for node in nodes)
        cluster.run_job(job, launcher_log.text(busbw=1.0 if is_slow else 2.0))

    cluster.runs = runs


def test_all_pools_are_measured_in_order_recorded_and_nothing_else_stays(cluster: Foreign) -> None:
    before = set(cluster.objects)
    done = busbar("measure", "mysite")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("PASS") == 2
    assert [(each.record.pool, each.record.kind, each.nodes) for each in records()] == [
        ("b200", "measure", ("gpu-3", "gpu-4")),
        ("h100", "measure", ("gpu-1", "gpu-2")),
    ]
    left = {path for path in cluster.objects if "/events/" not in path} - before
    assert all("/configmaps/nccl-history-" in path for path in left) and len(left) == 2
    assert done.stderr.startswith("measuring stack mysite\ncluster https://10.0.0.1:6443\n\npool h100\n")
    assert not (FOLDER / "h100" / "verdict.json").exists(), "the folder of the update's log stays as it is"


def test_a_run_keeps_its_files_and_is_told(cluster: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr("busbar.capability.notify", lambda *_: told.append(len(records())))
    busbar("measure", "mysite", "--pool", "h100")
    assert told == [1], "capabilities are told of a verdict that is recorded"
    [folder] = (FOLDER / "h100" / "runs").iterdir()
    assert {"nccl.log.zst", "verdict.json", "report.html"} <= {each.name for each in folder.iterdir()}
    assert [each.result.verdict_file for each in records()] == [f"{folder}/verdict.json"]


def test_the_folders_of_old_runs_are_deleted(cluster: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "KEPT_RUNS", 2)
    old = FOLDER / "h100" / "runs"
    for name in ("20250101T000000Z-run-1", "20260101T000000Z-run-2"):
        (old / name).mkdir(parents=True)
    busbar("measure", "mysite", "--pool", "h100")
    oldest, newest = sorted(each.name.split("-")[0] for each in old.iterdir())
    assert oldest == "20260101T000000Z" < newest


def test_one_pool_that_is_slow_is_a_fail_and_the_others_are_measured(cluster: Foreign) -> None:
    slow(cluster, "gpu-1")
    shown = busbar("measure", "mysite", "--json")
    found = {pool: each["verdict"] for pool, each in json.loads(shown.stdout)["pools"].items()}
    assert (shown.exit_code, found) == (1, {"h100": "fail", "b200": "pass"})
    done = busbar("measure", "mysite")
    assert done.exit_code == 1
    assert ("FAIL" in done.stdout, "PASS" in done.stdout) == (True, True)


def test_one_pool_that_is_busy_is_no_verdict_and_the_others_are_measured(cluster: Foreign) -> None:
    cluster.hold(holder("gpu-1", "train-0", 1))
    done = busbar("measure", "mysite")
    assert done.exit_code == 2
    assert "gpu-1: 0 of 1 nvidia.com/gpu are free, held by ml/train-0 (1)" in done.stderr
    assert [each.record.pool for each in records()] == ["b200"]
    slow(cluster, "gpu-3")
    assert busbar("measure", "mysite").exit_code == 1, "a slow fabric is worse than no verdict"


def test_idle_measures_free_nodes_below_all_other_pods_within_minutes(cluster: Foreign) -> None:
    done = busbar("measure", "mysite", "--pool", "h100", "--idle")
    assert done.exit_code == 0, done.output
    assert "PriorityClass" in {body["kind"] for _, body in cluster.created}
    assert not [path for path in cluster.objects if "priorityclasses" in path]
    assert [each.record.kind for each in records()] == ["idle"]


@pytest.mark.parametrize(("is_kept", "idle"), [(True, []), (False, []), (True, ["--idle"])])
def test_a_run_that_is_left_in_the_cluster_is_recorded_and_no_pass(
    cluster: Foreign, is_kept: bool, idle: list[str]
) -> None:
    cluster.deletes = False
    kubeconfig = (FOLDER / "kubeconfig").absolute()
    kubeconfig.parent.mkdir(parents=True)
    kubeconfig.write_text("") if is_kept else None
    done = busbar("measure", "mysite", "--pool", "h100", *idle)
    assert (done.exit_code, done.stdout.count("PASS"), len(records())) == (2, 1, 1)
    assert "is not removed: MPIJob busbar-validation/nccl-run-" in done.stderr
    asked = f"<(pulumi stack output kubeconfig --show-secrets --stack mysite --cwd {Path.cwd()})"
    options = f"--kubeconfig {kubeconfig if is_kept else asked}\n"
    where = " " if idle else " --namespace busbar-validation "  # a PriorityClass is in no namespace
    assert re.search(rf"Fix: busbar nccl clean run-\w+{where}{re.escape(options)}", done.stderr)


@pytest.mark.parametrize("busbw", [2.0, 1.0])
def test_idle_measures_without_a_broken_node_and_does_not_pass(cluster: Foreign, busbw: float) -> None:
    found = yaml.safe_load(Path("Pulumi.mysite.yaml").read_text())
    for worker in found["config"]["busbar:cluster"]["hosts"]["workers"]:
        worker["pool"] = "h100"
    del found["config"]["busbar:cluster"]["pools"]["b200"]
    Path("Pulumi.mysite.yaml").write_text(yaml.safe_dump(found, sort_keys=False))
    cluster.objects["/api/v1/nodes/gpu-4"] = gpu_node("gpu-4", gpus=1, ready=False)
    cluster.hold(holder("gpu-3", "train-0", 1))
    cluster.runs = lambda job: cluster.run_job(job, launcher_log.text(busbw=busbw))
    done = busbar("measure", "mysite", "--idle")
    assert done.exit_code == (2 if busbw == 2.0 else 1), done.output
    assert [each.nodes for each in records()] == [("gpu-1", "gpu-2")]
    assert "error: pool h100: not measured: gpu-4 is not Ready. Fix: " in done.stderr


@pytest.mark.parametrize(("words", "seconds"), [((), 1800), (("--minutes", "2"), 120), (("--idle",), 300)])
def test_minutes_bound_the_job(cluster: Foreign, words: tuple[str, ...], seconds: int) -> None:
    busbar("measure", "mysite", "--pool", "h100", *words)
    [job] = [body for _, body in cluster.created if body["kind"] == "MPIJob"]
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == seconds


def test_an_idle_run_that_made_room_is_no_verdict_and_leaves_no_record(cluster: Foreign) -> None:
    def runs(job: JsonObject) -> None:
        cluster.run_job(job, launcher_log.text(busbw=1.0))
        whole = cluster.logs.pop()

        def preempted(query: Mapping[str, str]) -> Iterator[bytes]:
            preempt(cluster, job)
            return whole(query)

        cluster.logs.append(preempted)

    cluster.runs = runs
    done = busbar("measure", "mysite", "--pool", "h100", "--idle")
    assert done.exit_code == 2
    assert "no verdict: the measurement made room for other pods: nccl-run-" in done.stderr
    assert done.stderr.count("made room") == 1
    assert "-worker-0: Preempted by pod 7f2 on node gpu-1" in done.stderr
    assert "fail: " not in done.stderr and "report: " not in done.stderr, "its verdict is not told"
    assert records() == [] and list((FOLDER / "h100" / "runs").iterdir()) == []
    assert cluster.left == []


def test_an_idle_run_whose_launcher_waits_for_a_preempted_worker_ends(cluster: Foreign) -> None:
    def runs(job: JsonObject) -> None:
        cluster.run_job(job)
        del job["status"]
        [launcher] = [each for path, each in cluster.objects.items() if "-launcher-" in path]
        launcher["status"] = {"phase": "Running", "containerStatuses": [container({"running": {}})]}
        first = launcher_log.stamped("measuring all_reduce\n")

        def silent(query: Mapping[str, str]) -> Iterator[bytes]:
            preempt(cluster, job)
            return iter([first])

        cluster.logs = [silent] * 2

    cluster.runs = runs
    done = busbar("measure", "mysite", "--pool", "h100", "--idle")
    assert (done.exit_code, cluster.left) == (2, [])
    assert "no verdict: the measurement made room for other pods: nccl-run-" in done.stderr
    assert len(cluster.logs) == 1, "the log is not read again after that"


def test_a_run_below_the_noise_of_those_before_warns(cluster: Foreign) -> None:
    busbar("measure", "mysite", "--pool", "h100")
    [line] = (FOLDER / "h100" / FILE).read_text().splitlines()
    before = [line.replace('"uid-', f'"{number}-').replace("T06:", "T05:") for number in range(5)]
    (FOLDER / "h100" / FILE).write_text("\n".join(before) + "\n")
    cluster.runs = lambda job: cluster.run_job(job, launcher_log.text(busbw=1.9))
    done = busbar("measure", "mysite", "--pool", "h100")
    assert done.exit_code == 0, "the gate allows 10 %"
    assert "warning: pool h100: 1.9 GB/s is 5.0% below the median of 5 passes" in done.stderr


def test_new_workers_can_be_measured_alone(cluster: Foreign) -> None:
    cluster.hold(holder("gpu-3", "train-0", 1))
    done = busbar("measure", "mysite", "--nodes", "gpu-4")
    assert "note: one Node: NVLink inside it is measured, and no fabric\n" in done.stderr
    assert [each.nodes for each in records()] == [("gpu-4",)]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("measure mysite --pool a40", "--pool a40: expected one of h100, b200"),
        ("measure mysite --nodes gpu-1,gpu-3", "expected workers of one pool, got those of b200, h100"),
        ("measure mysite --nodes gpu-9", "no workers of the stack: gpu-9"),
        ("measure mysite --pool h100 --nodes gpu-1,gpu-3", "no workers of h100: gpu-3"),
        ("measure nosite", "nosite"),
        ("history nosite", "nosite"),
        ("measure broken", "Pulumi.broken.yaml: 4 errors"),
    ],
)
def test_bad_usage_ends_with_64_and_measures_nothing(cluster: Foreign, words: str, complaint: str) -> None:
    Path("Pulumi.broken.yaml").write_text("config: {'busbar:cluster': {}}")
    done = busbar(*words.split())
    assert (done.exit_code, complaint in done.stderr) == (64, True), done.stderr
    assert cluster.created == []


def test_without_a_kubeconfig_there_is_no_verdict(cluster: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(file: Any) -> str:
        raise SecretError("the output kubeconfig of stack mysite cannot be read")

    monkeypatch.setattr("busbar.cli.stackfile.kubeconfig_of", unknown)
    done = busbar("measure", "mysite")
    assert (done.exit_code, "no verdict: the output kubeconfig" in done.stderr) == (2, True)


def test_ctrl_c_ends_with_130_and_all_pools(cluster: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: str, **__: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "list", interrupted)
    done = busbar("measure", "mysite")
    assert (done.exit_code, done.stderr.count("pool ")) == (130, 1)


def known(*values: float, **more: Any) -> None:
    """Records of these bandwidths on this machine, of a stack that has the pool h100 alone."""
    found = yaml.safe_load(Path("Pulumi.mysite.yaml").read_text())
    del found["config"]["busbar:cluster"]["pools"]["b200"]
    del found["config"]["busbar:cluster"]["hosts"]["workers"][2:]
    Path("Pulumi.mysite.yaml").write_text(yaml.safe_dump(found, sort_keys=False))
    folder = FOLDER / "h100"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(summary(run(number, value, **more))) for number, value in enumerate(values)]
    (folder / FILE).write_text("\n".join(lines) + "\n")


def test_history_is_a_table_of_all_runs_with_what_is_normal(cluster: Foreign) -> None:
    known(*STEADY, 380.0)
    done = busbar("history", "mysite")
    assert done.exit_code == 0, done.output
    head, *rows = done.stdout.splitlines()
    assert " ".join(head.split()) == "time (UTC) pool by nodes verdict GB/s of median MAD changed"
    assert len(rows) == 6
    assert " ".join(rows[-1].split()) == "2026-11-24 11:00 h100 measure 2 pass 380 97.4% 0.5"


def test_history_ends_with_1_and_a_warning_where_the_last_run_is_low(cluster: Foreign) -> None:
    known(*STEADY, 350.0)
    done = busbar("history", "mysite")
    assert done.exit_code == 1
    assert "pass, low" in done.stdout
    assert done.stderr.endswith("Changed since the run before: nothing that is recorded\n")


def test_a_fail_on_hosts_that_the_stack_has_no_more_decides_nothing(cluster: Foreign) -> None:
    known(390.0, nodes=("gpu-8", "gpu-9"), pool="a100", verdict="fail")
    done = busbar("history", "mysite")
    assert (done.exit_code, "warning: no run on gpu-1, gpu-2" in done.stderr) == (2, True)
    with (FOLDER / "h100" / FILE).open("a") as file:
        file.write(json.dumps(summary(run(1, 390.0))))
    assert busbar("history", "mysite").exit_code == 0


def test_a_worker_whose_machine_was_never_measured_is_named_and_no_good_end(cluster: Foreign) -> None:
    known(390.0)
    cluster.objects["/api/v1/nodes/gpu-2"]["metadata"]["creationTimestamp"] = "2026-11-24T07:00:00Z"
    done = busbar("history", "mysite")
    warning = "warning: no run on gpu-2. Fix: busbar measure mysite"
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (2, warning)


@pytest.mark.parametrize(
    ("later", "quarantine", "code"),
    [([("gpu-1",)], "", 1), ([("gpu-1",), ("gpu-2",)], "", 0), ([("gpu-1",)], "gpu-2", 0)],
)
def test_a_pass_of_some_workers_leaves_the_fail_of_the_others(
    cluster: Foreign, later: list[tuple[str, ...]], quarantine: str, code: int
) -> None:
    known(390.0, verdict="fail")
    with (FOLDER / "h100" / FILE).open("a") as file:
        file.writelines(json.dumps(summary(run(9 + n, 390.0, nodes))) + "\n" for n, nodes in enumerate(later))
    text = Path("Pulumi.mysite.yaml").read_text()
    added = f"name: {quarantine}\n        quarantine: a cable"
    Path("Pulumi.mysite.yaml").write_text(text.replace(f"name: {quarantine}", added) if quarantine else text)
    done = busbar("history", "mysite")
    assert done.exit_code == code, done.output
    warned = "warning: pool h100: fail on gpu-1, gpu-2 at 2026-11-24 06:00 UTC" in done.stderr
    assert warned is bool(code), done.stderr


def test_history_has_the_runs_of_other_machines_from_the_cluster_once(cluster: Foreign) -> None:
    busbar("measure", "mysite")
    (FOLDER / "b200" / FILE).unlink()
    here = FOLDER / "h100" / FILE
    here.write_text(here.read_text().replace('"verdict":"pass"', '"verdict":"fail"'))
    found = json.loads(busbar("history", "mysite", "--json").stdout)["runs"]
    assert sorted((each["pool"], each["result"]["verdict"]) for each in found) == [
        ("b200", "pass"),
        ("h100", "fail"),  # it was judged again here, after the cluster got its record
    ]


@pytest.mark.parametrize("error", [ApiError("GET /x", 403, "forbidden"), UnknownState("no context")])
def test_history_without_the_cluster_says_so_and_shows_what_is_here(
    cluster: Foreign, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(*_: str, **__: str) -> None:
        raise error

    known(390.0)
    monkeypatch.setattr(cluster, "list", refused)
    done = busbar("history", "mysite", "--json")
    assert done.exit_code == 0
    assert f"note: only what was measured from this folder is shown: {error}" in done.stderr
    assert len(json.loads(done.stdout)["runs"]) == 1


def test_history_without_a_run_names_the_command_that_makes_one(cluster: Foreign) -> None:
    done = busbar("history", "mysite")
    assert (done.exit_code, "Fix: busbar measure mysite" in done.stderr) == (2, True)


def test_a_changed_value_in_brackets_is_shown_as_it_is(cluster: Foreign) -> None:
    known(390.0)
    with (FOLDER / "h100" / FILE).open("a") as file:
        file.write(json.dumps(summary(run(1, 390.0, settings={"env NCCL_ALGO": "[ring]"}))))
    assert busbar("history", "mysite").stdout.endswith("env NCCL_ALGO none -> [ring]\n")


def test_a_run_without_a_record_warns_of_no_earlier_one(cluster: Foreign) -> None:
    known(*STEADY, 350.0)
    cluster.runs = lambda job: cluster.objects.pop(next(path for path in cluster.left if "/mpijobs/" in path))
    done = busbar("measure", "mysite")
    assert (done.exit_code, len(records()), "below the median" in done.stderr) == (2, 6, False), done.stderr
