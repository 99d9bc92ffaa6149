"""`busbar measure`: pools are measured again, and the worst verdict counts."""

import json
from dataclasses import dataclass, field
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


@dataclass
class Site:
    """The stack in `folder`, whose hosts give `findings`; `asked`: what was measured of it.

    `verdicts`: of each pool. A measurement has its record, and is of all hosts that it was asked for unless
    `nodes` says which.
    """

    folder: Path
    verdicts: dict[str, dict[str, Any]] = field(default_factory=lambda: dict.fromkeys("ab", passing()))
    findings: list[Finding] = field(default_factory=list)
    nodes: list[str] | None = None
    asked: list[MeasureSpec] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "Pulumi.dev.yaml"

    def __call__(self, *words: str, command: str = "measure") -> Result:
        return busbar(command, str(self.file), *words)

    async def survey(self, *_: object, **__: object) -> Outcome:
        found = {name: HostRecord("f", name, each) for name, each in facts(slurm(**SITE)).items()}
        return Outcome(self.findings, {} if self.findings else found, len(found))

    def collect(self, spec: MeasureSpec, *_: object) -> dict[str, Any]:
        self.asked.append(spec)
        pool, names = spec.hosts[0].pool or "", [host.name for host in spec.hosts]
        record = Record(
            job_uid=spec.job, pool=pool, kind="update", folder=spec.folder,
            nodes=tuple(names), measured_at="2026-01-01T00:00:00Z", expectation={},
        )  # fmt: skip
        found = summarize(self.verdicts[pool], record=record)
        return {**found, "nodes_measured": self.nodes or names}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    made.file.write_text(stack_file(**SITE))
    monkeypatch.setattr("stacks.slurm.package.operations.survey", made.survey)
    monkeypatch.setattr("stacks.slurm.package.measure.collect", made.collect)
    return made


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
    site: Site, of_a: dict[str, Any], of_b: dict[str, Any], code: int
) -> None:
    site.verdicts = {"a": of_a, "b": of_b}
    done = site()
    assert done.exit_code == code, done.output
    folders = [str(site.folder / ".busbar" / "dev" / pool / "measure") for pool in ("a", "b")]
    assert [spec.folder for spec in site.asked] == folders
    made = slurm(**SITE)
    of_updates = {job.measure_spec(made, pool, facts(made), "x")["job"] for pool in POOLS}
    assert len({spec.job for spec in site.asked} - of_updates) == 2, "what an update has measured counts not"


def test_a_pass_without_a_host_that_nobody_has_left_out_is_no_verdict(site: Site) -> None:
    site.nodes = ["gpu-1"]
    done = site()
    assert done.exit_code == 2, done.output
    assert "not measured: gpu-2" in " ".join(done.output.split())


def test_nothing_is_measured_where_a_host_is_not_ready(site: Site) -> None:
    site.findings = [Finding(("gpu-1",), "7 GPUs, expected 8", "repair it")]
    done = site()
    assert done.exit_code == 1 and "gpu-1: 7 GPUs, expected 8" in done.output
    assert site.asked == []


def test_a_measurement_is_recorded_for_the_history_of_the_stack(site: Site) -> None:
    nothing = site(command="history")
    assert nothing.exit_code == 2 and "no measurement of stack dev is recorded" in nothing.stderr
    done = site("--json", "--minutes", "2")
    assert done.exit_code == 0, done.output
    assert {spec.deadline_seconds for spec in site.asked} == {120}
    assert [*json.loads(done.stdout)["pools"]] == ["a", "b"]
    shown = site("--json", command="history")
    assert shown.exit_code == 0, shown.output
    runs = json.loads(shown.stdout)["runs"]
    assert sorted((each["pool"], each["kind"]) for each in runs) == [("a", "measure"), ("b", "measure")]
    folders = {each.record.folder for each in read_folder(site.folder / ".busbar" / "dev")}
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
def test_only_what_is_named_is_measured(site: Site, words: list[str], hosts: list[list[str]]) -> None:
    done = site(*words)
    assert done.exit_code == 0, done.output
    assert [[host.name for host in spec.hosts] for spec in site.asked] == hosts


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--pool", "c"], "--pool c: expected one of a, b"),
        (["--nodes", "gpu-1,gpu-9"], "no workers of the stack: gpu-9"),
        (["--nodes", "gpu-1,gpu-2"], "expected workers of one pool, got those of a, b"),
        (["--nodes", "gpu-3"], "in quarantine, where Slurm starts no jobs: gpu-3"),
        (["--idle"], "--idle is for K3s"),
    ],
)
def test_what_cannot_be_measured_is_bad_usage(site: Site, words: list[str], text: str) -> None:
    hosts = compute({"pool": "a"}, {"pool": "b"}, {"pool": "a", "quarantine": "RMA 7"})
    site.file.write_text(stack_file(pools=POOLS, hosts=hosts))
    done = site(*words)
    assert done.exit_code == 64, done.output
    assert text in done.stderr and site.asked == []
