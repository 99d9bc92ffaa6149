"""`busbar slurm validate`: every pool is measured again, and the worst verdict is the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from busbar.hosts.finding import Finding
from busbar.outputs.pool import summarize
from busbar.preflight.facts import HostRecord
from busbar.preflight.survey import Outcome
from stacks.slurm.package import job
from stacks.slurm.package.config import KEY, PROJECT
from stacks.slurm.package.measure import MeasureSpec
from stacks.slurm.tests.support import compute, configured, facts, slurm
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

    monkeypatch.setattr("stacks.slurm.package.preflight.survey", survey)
    (tmp_path / "Pulumi.dev.yaml").write_text(
        yaml.safe_dump({"config": {f"{PROJECT}:{KEY}": configured(**SITE)}})
    )
    return asked


def validate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: list[MeasureSpec], verdicts: Mapping[str, Any]
) -> Result:
    def collect(spec: MeasureSpec, *_: object) -> dict[str, Any]:
        asked.append(spec)
        return summarize(verdicts[Path(spec.folder).parent.name])

    monkeypatch.setattr("stacks.slurm.package.measure.collect", collect)
    return busbar("slurm", "validate", str(folder / "Pulumi.dev.yaml"))


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
    done = validate(tmp_path, monkeypatch, measured, {"a": of_a, "b": of_b})
    assert done.exit_code == code, done.output
    assert [spec.folder for spec in measured] == [
        str(tmp_path / ".busbar" / "dev" / pool / "validate") for pool in ("a", "b")
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
    done = busbar("slurm", "validate", str(tmp_path / "Pulumi.dev.yaml"))
    assert done.exit_code == 2, done.output
    assert "not measured: gpu-2" in " ".join(done.output.split())


def test_nothing_is_measured_where_a_host_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[MeasureSpec]
) -> None:
    async def survey(*_: object, **__: object) -> Outcome:
        return Outcome([Finding("gpu-1", "error", "7 GPUs, expected 8", "repair it")], {}, 4)

    monkeypatch.setattr("stacks.slurm.package.preflight.survey", survey)
    done = validate(tmp_path, monkeypatch, measured, {})
    assert done.exit_code == 1 and "gpu-1: 7 GPUs, expected 8" in done.output
    assert measured == []
