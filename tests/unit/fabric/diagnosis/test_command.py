"""`busbar diagnose` as it is typed: output, exit codes, usage."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.collect.watch import Unreachable
from busbar.fabric import paths
from busbar.fabric.commands.diagnose import after_failed_gate
from busbar.fabric.diagnosis import Diagnosis, State
from busbar.fabric.measure.run import Interrupted
from busbar.kube.client import ApiError
from tests.support.clusters import site
from tests.unit.fabric.diagnosis.stack import Stack, diagnose
from tests.unit.fabric.measure.foreign import holder


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stack:
    """A stack with two pools; each test adds to what its diagnosis finds."""
    cluster = site(workers={"h100": 4, "b200": 1})
    cluster["hosts"]["workers"][3]["quarantine"] = "slow"
    made = Stack(monkeypatch, tmp_path, cluster, ["gpu-1", "gpu-2", "gpu-3"])
    made.pair("A", 390, "gpu-1", "gpu-2")
    made.pair("A", 391, "gpu-3", "gpu-1")
    return made


def failed_stack(when: str, *, passed: bool) -> Path:
    """The stack file after an update whose pool h100 has this verdict."""
    path = Path("Pulumi.prod.yaml").resolve()
    text = yaml.safe_load(path.read_text())
    text["config"]["busbar:cluster"]["validation"] = {"diagnose": {"when": when}}
    path.write_text(yaml.safe_dump(text))
    verdict = path.parent / ".busbar" / "prod" / "h100" / "verdict.json"
    verdict.parent.mkdir(parents=True)
    verdict.write_text(json.dumps({"passed": passed}))
    return path


def test_nothing_slow_lists_the_healthy_nodes_and_ends_with_0(found: Stack) -> None:
    done = diagnose("--pool", "h100")
    first, *rest = done.stdout.splitlines()
    assert first.startswith(
        "not judged    gpu-1, gpu-2, gpu-3: whether they are 10 % slow, because they have too"
    )
    assert rest == ["healthy       3: gpu-1, gpu-2, gpu-3", "2 runs in 90 s, 4.5 node-minutes"]
    assert done.exit_code == 0


def test_a_slow_node_is_a_row_with_its_reasons_and_the_next_commands(found: Stack) -> None:
    found.state.results.clear()
    found.pair("A", 390, "gpu-1", "gpu-2")
    found.pair("A", None, "gpu-3", "gpu-1", reason="timed out after 120 s")
    for partner in ("gpu-1", "gpu-2"):
        found.pair("B", 190, "gpu-3", partner)
    done = diagnose("--pool", "h100")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert done.exit_code == 1
    assert lines[:2] == [
        "slow where measured expected runs partners",
        "node gpu-3 190 GB/s 400 GB/s 2 gpu-1, gpu-2",
    ]
    assert "next on gpu-3: nvidia-smi nvlink -e" in lines
    assert lines[-2:] == ["healthy 2: gpu-1, gpu-2", "4 runs in 90 s, 4.5 node-minutes"]


def test_a_slow_run_of_nodes_that_were_good_later_is_named(found: Stack) -> None:
    found.state.results[1] = (found.state.results[1][0], 250, "")
    for partner in ("gpu-1", "gpu-2"):
        found.pair("B", 391, "gpu-3", partner)
    done = diagnose("--pool", "h100")
    line = "slow once     gpu-3 with gpu-1: 250 GB/s of 400 GB/s in stage A, good in other runs"
    assert (done.exit_code, line in done.stdout.splitlines()) == (0, True)


def test_of_two_nodes_the_commands_are_for_both_and_without_an_hca_the_key_is_named(found: Stack) -> None:
    found.state.nodes[:] = ["gpu-2", "gpu-1"]
    found.state.results.clear()
    found.pair("A", 190, "gpu-2", "gpu-1")
    done = diagnose("--pool", "h100")
    assert [line for line in done.stdout.splitlines() if line.startswith("next")] == [
        "next    on gpu-1: ibv_devinfo -l (with them as validation.hcas, busbar diagnose tries each rail)",
        "next    on gpu-1: nvidia-smi nvlink -e",
        "next    on gpu-2: nvidia-smi nvlink -e",
        "next    ibdiagnet",
    ]


@pytest.mark.parametrize(
    ("what", "value", "line"),
    [
        ("absent", {"gpu-3": "ImagePullBackOff"}, "not measured  gpu-3: ImagePullBackOff"),
        (
            "stopped",
            "stage B: 2 of 6 groups have not run",
            "stopped       stage B: 2 of 6 groups have not run",
        ),
        ("nodes", [f"gpu-{number}" for number in range(1, 5)], "not decided   gpu-4: too few runs"),
    ],
)
def test_what_was_not_measured_is_never_a_good_end(found: Stack, what: str, value: Any, line: str) -> None:
    setattr(found.state, what, value)
    done = diagnose("--pool", "h100")
    assert (done.exit_code, line in done.stdout) == (2, True), done.output


def test_the_json_has_rows_healthy_nodes_and_every_run(found: Stack) -> None:
    done = json.loads(diagnose("--pool", "h100", "--json").stdout)
    assert (done["stack"], done["pool"], done["rows"], done["healthy"]) == (
        "prod", "h100", [], ["gpu-1", "gpu-2", "gpu-3"],
    )  # fmt: skip
    assert done["results"][0]["name"] == "A0/gpu-1/gpu-2"
    assert (done["results"][0]["busbw"], done["results"][0]["kind"]) == (390, "in_group")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "the stack has the pools h100, b200. Fix: --pool NAME"),
        (["--pool", "a100"], "--pool a100: expected one of h100, b200"),
        (["--pool", "h100", "--nodes", "gpu-1,gpu-5"], "--nodes gpu-1,gpu-5: no workers of h100: gpu-5"),
        (["--paths", "--quarantine"], "--paths excludes --quarantine and --release"),
        (["--quarantine", "--release"], "--quarantine and --release exclude each other"),
        (["--release", "--nodes", "gpu-1"], "no worker of pool h100 to release. Fix: --nodes A"),
    ],
)
def test_bad_usage_ends_with_64(found: Stack, words: list[str], complaint: str) -> None:
    done = diagnose(*words)
    assert (done.exit_code, done.stdout) == (64, "")
    assert complaint in done.stderr


def test_named_workers_may_be_in_quarantine_and_others_may_not(found: Stack) -> None:
    diagnose("--pool", "h100")
    diagnose("--nodes", "gpu-4,gpu-1")
    assert [scope.nodes for scope in found.scopes] == [("gpu-1", "gpu-2", "gpu-3"), ("gpu-4", "gpu-1")]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (Unreachable("no route to host"), 2, "no verdict: no route to host"),
        (Interrupted(15), 143, "interrupted. What is known is kept: the same command continues"),
    ],
)
def test_what_ends_it_has_its_own_exit_code(
    found: Stack, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str
) -> None:
    def fails(self: Diagnosis) -> State:
        raise error

    monkeypatch.setattr(Diagnosis, "run", fails)
    done = diagnose("--pool", "h100")
    assert (done.exit_code, text in done.stderr) == (code, True)


ADVICE = (
    "`busbar diagnose prod` finds which node, rail or switch is slow, "
    "`busbar diagnose prod --paths` measures each rail without NCCL."
)


@pytest.mark.parametrize(
    ("when", "passed", "pools"),
    [("on_failure", False, ["h100"]), ("on_failure", True, []), ("never", False, [])],
)
def test_a_failed_gate_diagnoses_the_pools_that_did_not_pass_where_the_configuration_says_so(
    found: Stack, when: str, passed: bool, pools: list[str]
) -> None:
    said: list[str] = []
    after_failed_gate(failed_stack(when, passed=passed), said.append)
    assert [scope.pool for scope in found.scopes] == pools
    assert said == [ADVICE.replace("diagnose prod", "diagnose prod --pool POOL")]


INVALID = (
    "no diagnosis, because Pulumi.prod.yaml has changed since the update began and is not valid. "
    "Fix: `busbar check-config prod`, correct it, then `busbar diagnose prod`"
)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("busbar-slurm:slurm: {}", [ADVICE]),
        ("site:size: large", []),  # another program that makes a Cluster
        ("busbar:cluster: {name: 1}", [INVALID]),
        ("busbar:cluster: [", [INVALID]),
    ],
)
def test_only_a_valid_cluster_of_busbar_is_diagnosed(tmp_path: Path, section: str, told: list[str]) -> None:
    (tmp_path / "Pulumi.prod.yaml").write_text(f"config: {{{section}}}\n")
    said: list[str] = []
    after_failed_gate(tmp_path / "Pulumi.prod.yaml", said.append)
    assert said == told


def test_a_diagnosis_that_cannot_run_changes_no_update(found: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Diagnosis) -> State:
        raise ApiError("GET /api/v1/nodes", 503, "unavailable")

    monkeypatch.setattr(Diagnosis, "run", fails)
    after_failed_gate(failed_stack("on_failure", passed=False), print)


@pytest.fixture
def measured(found: Stack, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The workers whose paths are measured from now on; the paths of gpu-2 to its GPU are slow."""
    asked: list[list[str]] = []

    async def measure(_: object, workers: dict[str, Any], *__: object) -> paths.Found:
        asked.append([*workers])
        known = paths.Found({name: {"mlx5_0": paths.Rail("mlx5_0/1", 400, None)} for name in workers})
        for name in workers:
            path = paths.RailPath(host=name, rail="mlx5_0", memory="gpu", gpu="0000:1b:00.0")
            known.take([path.model_copy(update={"gbps": 41.0 if name == "gpu-2" else 392.0})])
        return known

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr("busbar.hosts.remote.Hosts.open", opened)
    monkeypatch.setattr(paths, "measure", measure)
    return asked


def test_the_paths_of_a_pool_are_measured_and_a_slow_one_is_named(measured: list[list[str]]) -> None:
    done = diagnose("--pool", "h100", "--paths")
    assert (measured, done.exit_code) == ([["gpu-1", "gpu-2", "gpu-3"]], 1)
    assert "plan: 8 rails with 2 memories on 3 hosts at once, about 96 s" in done.stderr
    assert done.stdout.splitlines() == [
        "gpu-2 mlx5_0 with GPU 0000:1b:00.0: 41 Gb/s, expected at least 380 Gb/s, the median of all hosts is "
        "392 Gb/s",
        f"  points to {paths.GPU_TO_HCA}",
        "3 paths measured, 1 slow, 0 not run",
    ]
    printed = json.loads(diagnose("--paths", "--nodes", "gpu-2", "--json").stdout)
    assert (printed["stack"], printed["pool"], printed["not_run"]) == ("prod", "h100", [])
    assert [row["points_to"] for row in printed["rows"]] == [paths.GPU_TO_HCA]


def test_no_path_is_measured_while_a_pod_holds_devices(
    measured: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("busbar.kube.gpus.active_pods", lambda _: [holder("gpu-2", "train", 1)])
    done = diagnose("--pool", "h100", "--paths")
    assert (measured, done.exit_code) == ([], 2)
    assert "GPUs or HCAs are in use: ml/train on gpu-2. Fix: wait for these jobs, or end them" in done.stderr
    assert diagnose("--pool", "h100", "--paths", "--nodes", "gpu-1,gpu-3").exit_code == 0
