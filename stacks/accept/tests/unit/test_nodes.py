"""Each node alone, pairs and rails: the real script of each job names what is slow, from its log alone."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from busbar.config.stackfile import StackFile
from busbar.exits import NoVerdict
from stacks.accept.package import criteria as contract
from stacks.accept.package import document
from stacks.accept.package import running as stage_runs
from stacks.accept.package.evidence import FOLDER, Evidence
from stacks.accept.package.running import Running, run_stage
from stacks.accept.package.site import Site as Facts
from stacks.accept.package.subjects import nodes
from stacks.accept.tests.unit import made
from stacks.accept.tests.unit.test_run import preempting
from tests.unit.fabric.diagnosis.site import Site
from tests.unit.fabric.measure.foreign import gpu_node, holder


class Accepted:
    """A run on a cluster of which some parts are slow."""

    def __init__(self, folder: Path, slow: Mapping[str, float], **more: Any) -> None:
        self.site = Site(folder / "site", (4,), dict(slow), **more)
        (folder / "site").mkdir()
        self.folder, cluster = folder / "run", self.site.inventory.cluster
        self.folder.mkdir()
        begun = made.begun(self.folder, Facts.of("prod", cluster))
        file, rows = StackFile(folder / "Pulumi.x.yaml", {}, frozenset()), contract.default(begun.site).rows
        self.on = Running(
            self.folder, begun, file, cluster, False, self.site.said.append, self.site.clock, rows=rows
        )
        self.on.__dict__["api"] = self.site.api

    def run(self, *stages: Any) -> None:
        for stage in stages:
            run_stage(stage, self.on)

    def row(self, row: str) -> SimpleNamespace:
        return SimpleNamespace(**{each["id"]: each for each in self.rows}[row])

    @property
    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = document.contents(self.folder)[0]["rows"]
        return found


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_runs, "now", lambda: "2026-11-24T06:00:00Z")


@pytest.fixture
def accepted(tmp_path: Path, times: None) -> Any:
    return lambda slow, **more: Accepted(tmp_path, slow, **more)


@pytest.mark.slow
def test_a_slow_node_is_named_left_out_of_later_stages_and_nothing_else_is_kept(accepted: Any) -> None:
    found = accepted({"gpu-2": 0.9, "alone/gpu-2": 0.5})
    found.run(nodes.NVLINK, nodes.PAIRS)
    alone, pairs = found.row("nvlink.h100.busbw"), found.row("pairs.h100.slow")
    assert (alone.result, alone.nodes, "gpu-2 240 GB/s" in alone.reason) == ("fail", ["gpu-2"], True)
    assert (pairs.result, pairs.nodes) == ("fail", ["gpu-2"]), pairs.reason
    assert "node gpu-2: 360 of 400 GB/s" in pairs.reason
    assert found.on.good("h100") == ["gpu-1", "gpu-3", "gpu-4"]
    document_ = document.contents(found.folder)[0]
    assert (document_["holds_on"], [*document_["left_out"]]) == (3, ["gpu-2"])
    files = {path.name for path in (found.folder / FOLDER).rglob("*") if path.is_file()}
    asked = {"machines-000.json.zst"}
    assert files == {"nccl.log.zst", "source.json", "stage.json", "run.json", *asked}
    assert found.site.api.left == []


def test_an_idle_run_takes_only_free_nodes_and_others_are_neither_slow_nor_counted(accepted: Any) -> None:
    found = accepted({})
    api = found.site.api
    api.objects["/api/v1/nodes/gpu-3"] = gpu_node("gpu-3", ready=False)
    api.hold(holder("gpu-4", "train", 8))
    found.on = replace(found.on, idle=True)
    found.on.__dict__["api"] = api
    found.run(nodes.PAIRS)
    count, slow = found.row("pairs.h100.nodes"), found.row("pairs.h100.slow")
    assert (count.result, count.value, "not gpu-3, gpu-4" in count.reason) == ("fail", 2, True)
    assert slow.nodes == []


def test_a_stage_that_ends_for_other_pods_has_no_result(accepted: Any) -> None:
    found = accepted({})
    found.on = replace(found.on, idle=True)
    api = found.site.api
    found.on.__dict__["api"] = api
    api.runs = preempting(api, api.runs)
    with pytest.raises(NoVerdict, match=r"stage pairs: .*made room for other pods"):
        found.run(nodes.PAIRS)
    assert Evidence(found.folder).stage("pairs") is None
    assert api.left == []


def test_a_stage_whose_job_has_lost_results_is_repeated_by_the_next_call(accepted: Any) -> None:
    found = accepted({})
    api = found.site.api
    run_job = api.run_job

    def lossy(job: Any, text: str) -> None:
        run_job(job, "".join(line for line in text.splitlines(True) if "    sum    " not in line))

    api.run_job = lossy
    with pytest.raises(NoVerdict, match=r"stage nvlink: pool h100: .* groups have not run: .*continues here"):
        found.run(nodes.NVLINK)
    assert Evidence(found.folder).stage("nvlink") is None
