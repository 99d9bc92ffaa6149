"""`busbar measure`: pools are measured again, and the worst verdict counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from busbar.fabric.measure.history import read_folder
from busbar.finding import Finding
from busbar.judge.archive import Record
from busbar.outputs.contract import summarize
from busbar.preflight.facts import HostRecord
from busbar.preflight.survey import Outcome
from stacks.slurm.package import job
from stacks.slurm.package.measure import MeasureSpec
from stacks.slurm.tests.support import compute, configured, facts, slurm, stack_file
from tests.support.cli import busbar
from tests.support.verdicts import failing, passing, unknown

POOLS = {name: configured()["pools"]["h100"] for name in ("a", "b")}
SITE = {"pools": POOLS, "hosts": compute({"pool": "a"}, {"pool": "b"})}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[MeasureSpec]:
    """What will be measured of the stack in `tmp_path`, whose hosts are ready."""
    asked: list[MeasureSpec] = []

    async def survey(*_: object, **__: object) -> Outcome:
        found = {name: HostRecord("f", name, each) for name, each in facts(slurm(**SITE)).items()}
        return Outcome([], found, len(found))

    monkeypatch.setattr("stacks.slurm.package.operations.survey", survey)
    (tmp_path / "Pulumi.dev.yaml").write_text(stack_file(**SITE))
    return asked


def measure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: list[MeasureSpec], verdicts: Mapping[str, Any]
) -> Result:
    def collect(spec: MeasureSpec, *_: object) -> dict[str, Any]:
        asked.append(spec)
        return summarize(verdicts[Path(spec.folder).parent.name])

    monkeypatch.setattr("stacks.slurm.package.measure.collect", collect)
    return busbar("measure", str(folder / "Pulumi.dev.yaml"))


@pytest.mark.parametrize(
    ("of_a", "of_b", "code"),
    [
        (passing(), passing(), 0),
        (passing(), failing("GDRDMA is missing"), 1),
        (passing(), unknown(), 2),
        (unknown(), failing("GDRDMA is missing"), 1),
    ],
)
def test_every_pool_is_measured_and_the_worst_verdict_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured: list[MeasureSpec],
    of_a: dict[str, Any],
    of_b: dict[str, Any],
    code: int,
) -> None:
    done = measure(tmp_path, monkeypatch, measured, {"a": of_a, "b": of_b})
    assert done.exit_code == code, done.output
    assert [spec.folder for spec in measured] == [
        str(tmp_path / ".busbar" / "dev" / pool / "measure") for pool in ("a", "b")
    ]
    made = slurm(**SITE)
    of_updates = {job.measure_spec(made, pool, facts(made), "x")["job"] for pool in POOLS}
    assert len({spec.job for spec in measured} - of_updates) == 2, "what an update has measured counts not"


def test_a_pass_without_a_host_that_nobody_has_left_out_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[MeasureSpec]
) -> None:
    monkeypatch.setattr(
        "stacks.slurm.package.measure.collect",
        lambda *_: {**summarize(passing()), "nodes_measured": ["gpu-1"]},
    )
    done = busbar("measure", str(tmp_path / "Pulumi.dev.yaml"))
    assert done.exit_code == 2, done.output
    assert "not measured: gpu-2" in " ".join(done.output.split())


def test_nothing_is_measured_where_a_host_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[MeasureSpec]
) -> None:
    async def survey(*_: object, **__: object) -> Outcome:
        return Outcome([Finding(("gpu-1",), "7 GPUs, expected 8", "repair it")], {}, 4)

    monkeypatch.setattr("stacks.slurm.package.operations.survey", survey)
    done = measure(tmp_path, monkeypatch, measured, {})
    assert done.exit_code == 1 and "gpu-1: 7 GPUs, expected 8" in done.output
    assert measured == []


@pytest.fixture
def passed(measured: list[MeasureSpec], monkeypatch: pytest.MonkeyPatch) -> list[MeasureSpec]:
    """The same; every measurement passes, with its record."""

    def collect(spec: MeasureSpec, *_: object) -> dict[str, Any]:
        measured.append(spec)
        names = [host.name for host in spec.hosts]
        record = Record(
            job_uid=spec.job, pool=spec.hosts[0].pool or "", kind="update", folder=spec.folder,
            nodes=tuple(names), measured_at="2026-01-01T00:00:00Z", expectation={},
        )  # fmt: skip
        return {**summarize(passing(), record=record), "nodes_measured": names}

    monkeypatch.setattr("stacks.slurm.package.measure.collect", collect)
    return measured


def test_a_measurement_is_recorded_for_the_history_of_the_stack(
    tmp_path: Path, passed: list[MeasureSpec]
) -> None:
    file = str(tmp_path / "Pulumi.dev.yaml")
    nothing = busbar("history", file)
    assert nothing.exit_code == 2 and "no measurement of stack dev is recorded" in nothing.stderr
    done = busbar("measure", file, "--json")
    assert done.exit_code == 0, done.output
    assert [*json.loads(done.stdout)["pools"]] == ["a", "b"]
    shown = busbar("history", file, "--json")
    assert shown.exit_code == 0, shown.output
    runs = json.loads(shown.stdout)["runs"]
    assert sorted((each["pool"], each["kind"]) for each in runs) == [("a", "measure"), ("b", "measure")]
    folders = {each.record.folder for each in read_folder(tmp_path / ".busbar" / "dev")}
    assert folders == {".busbar/dev/a/measure", ".busbar/dev/b/measure"}


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        (["--pool", "b"], [["gpu-2"]]),
        (["--nodes", "gpu-1"], [["gpu-1"]]),
        (["--pool", "a", "--nodes", "gpu-1,"], [["gpu-1"]]),
        ([], [["gpu-1"], ["gpu-2"]]),
    ],
)
def test_only_what_is_named_is_measured_and_decides(
    tmp_path: Path, passed: list[MeasureSpec], words: list[str], hosts: list[list[str]]
) -> None:
    done = busbar("measure", str(tmp_path / "Pulumi.dev.yaml"), *words)
    assert done.exit_code == 0, done.output
    assert [[host.name for host in spec.hosts] for spec in passed] == hosts


def test_the_time_of_the_job_can_be_cut(tmp_path: Path, passed: list[MeasureSpec]) -> None:
    busbar("measure", str(tmp_path / "Pulumi.dev.yaml"), "--minutes", "2")
    assert {spec.deadline_seconds for spec in passed} == {120}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--pool", "c"], "--pool c: expected one of a, b"),
        (["--nodes", "gpu-1,gpu-9"], "no workers of the stack: gpu-9"),
        (["--nodes", "gpu-1,gpu-2"], "expected workers of one pool, got those of a, b"),
        (["--idle"], "--idle is for K3s"),
    ],
)
def test_what_cannot_be_measured_is_bad_usage(
    tmp_path: Path, passed: list[MeasureSpec], words: list[str], text: str
) -> None:
    done = busbar("measure", str(tmp_path / "Pulumi.dev.yaml"), *words)
    assert done.exit_code == 64, done.output
    assert text in done.stderr and passed == []


def test_a_host_in_quarantine_cannot_be_measured(tmp_path: Path, passed: list[MeasureSpec]) -> None:
    file = tmp_path / "Pulumi.dev.yaml"
    hosts = compute({"pool": "a", "quarantine": "RMA 7"}, {"pool": "a"}, {"pool": "b"})
    file.write_text(stack_file(pools=POOLS, hosts=hosts))
    done = busbar("measure", str(file), "--nodes", "gpu-1")
    assert done.exit_code == 64 and passed == [], done.output
    assert "in quarantine, where Slurm starts no jobs: gpu-1" in done.stderr
