"""A new judge: a kept log is judged again, which is announced; one that is gone leaves the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from busbar.judge.archive import Archive
from busbar.judge.checks import JobOutcome
from busbar.judge.nccl import Expectation, judge_log, read_lines
from busbar.judge.nccl.expected import JUDGE
from busbar.outputs.again import judged_again
from busbar.outputs.pool import read_result, summarize
from tests.unit.judge.nccl.logs import Made

WANT = {"profile": "h100-ib-8x400", "nodes": 2}


@pytest.fixture
def spec(tmp_path: Path) -> dict[str, Any]:
    return {"namespace": "ns", "job": "nccl", "folder": str(tmp_path / "h100"), "expectation": WANT}


def measured(spec: dict[str, Any], peak: float = 390.0, **former: Any) -> str:
    """What the collector printed on a log that it kept, with what the FORMER judge found."""
    archive = Archive(Path(spec["folder"]))
    made = Made()
    made.peak = peak
    with archive.new_log() as sink:
        from busbar.zstd import ZstdFile

        with ZstdFile(sink, "w") as file:
            file.write("".join(f"{line}\n" for line in made.lines()).encode())
    archive.mark_complete("u-1")
    log = read_lines(archive.log_lines())
    verdict = judge_log(log, Expectation.model_validate(WANT), JobOutcome(True)).model_dump(mode="json")
    verdict |= {"judge": 1, **former}
    archive.save_verdict(verdict)
    return json.dumps(summarize(verdict, config_map="ns/x", measured_at="2026-11-23T01:02:03Z"))


def again(printed: str, spec: dict[str, Any], *, keep: bool = False) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    return judged_again(read_result(printed), spec, keep=keep, announce=said.append), said


FAILED: dict[str, Any] = {
    "verdict": "fail",
    "passed": False,
    "reasons": ["busbw: too slow"],
    "expected_gbps": 800.0,
}


def test_the_preview_names_pool_old_and_new_verdict_and_expectation(spec: dict[str, Any]) -> None:
    result, said = again(measured(spec, **FAILED), spec)
    assert said == [
        "pool h100 is judged again, not measured: by judge 1 fail, 800 GB/s expected, "
        f"by judge {JUDGE} pass, 400 GB/s expected"
    ]
    assert (result["verdict"], result["expected_gbps"]) == ("pass", 400.0)
    assert result["measured_at"] == "2026-11-23T01:02:03Z"
    # a preview keeps nothing: the next one says the same
    assert json.loads((Path(spec["folder"]) / "verdict.json").read_text())["judge"] == 1


def test_a_verdict_that_gets_worse_says_why(spec: dict[str, Any]) -> None:
    printed = measured(spec, peak=300.0, verdict="pass", passed=True, reasons=[], expected_gbps=300.0)
    result, said = again(printed, spec)
    assert result["verdict"] == "fail"
    assert said[0].endswith(f"by judge {JUDGE} fail, 400 GB/s expected ({result['reasons'][0]})")


def test_another_reason_for_the_same_verdict_is_news(spec: dict[str, Any]) -> None:
    result, said = again(measured(spec, peak=300.0, reasons=["a former reason"]), spec)
    assert (result["verdict"], len(said)) == ("fail", 1)
    assert result["reasons"] != ["a former reason"]


def test_the_update_keeps_the_new_verdict_and_the_next_one_says_nothing(spec: dict[str, Any]) -> None:
    printed = measured(spec, **FAILED)
    first, said = again(printed, spec, keep=True)
    kept = json.loads((Path(spec["folder"]) / "verdict.json").read_text())
    assert said and (kept["judge"], kept["verdict"]) == (JUDGE, "pass")
    assert any(check["code"] == "job.succeeded" for check in kept["checks"])
    assert "<html" in (Path(spec["folder"]) / "report.html").read_text()
    assert again(printed, spec) == (first, [])


def test_the_same_verdict_and_expectation_are_no_news(spec: dict[str, Any]) -> None:
    printed = measured(spec)
    assert again(printed, spec, keep=True) == (read_result(printed), [])
    assert again(printed, spec) == (read_result(printed), [])


@pytest.mark.parametrize("lost", ["nccl.log.zst", "verdict.json", "source.json", "other log", "other run"])
def test_what_is_gone_or_of_another_measurement_leaves_the_stored_verdict(
    spec: dict[str, Any], lost: str
) -> None:
    printed = measured(spec, **FAILED)
    folder = Path(spec["folder"])
    if lost == "other log":
        kept = (folder / "verdict.json").read_text()
        measured(spec, peak=389.0)
        (folder / "verdict.json").write_text(kept)
    elif lost == "other run":
        measured(spec, peak=389.0, **FAILED)
    else:
        (folder / lost).unlink()
    assert again(printed, spec, keep=True) == (read_result(printed), [])


def test_a_log_that_cannot_be_read_leaves_the_verdict_and_says_so(spec: dict[str, Any]) -> None:
    printed = measured(spec, **FAILED)
    (Path(spec["folder"]) / "nccl.log.zst").write_bytes(b"damaged")
    result, said = again(printed, spec)
    assert result == read_result(printed)
    assert "cannot be judged again, its verdict of judge 1 stays" in said[0]


def test_the_folder_alone_says_what_was_expected_and_how_the_job_ended(spec: dict[str, Any]) -> None:
    printed = measured(spec, **FAILED)
    record = {"expectation": WANT, "outcome": {"succeeded": False, "reasons": ["evicted"]}}
    Archive(Path(spec["folder"])).mark_complete("u-1", record)
    changed = {**spec, "expectation": {**WANT, "expected_busbw_gbps": 1000.0}}
    result, _ = again(printed, changed)
    assert (result["expected_gbps"], result["reasons"][0]) == (400.0, "job: evicted")


def test_a_former_measurement_is_judged_by_no_expectation_but_its_own(spec: dict[str, Any]) -> None:
    former = read_result(measured(spec, **FAILED))

    def judged() -> dict[str, Any]:
        return judged_again(former, spec, keep=False, announce=lambda _: None, is_former=True)

    assert judged() == former
    record = {"expectation": WANT, "outcome": {"succeeded": True, "reasons": []}}
    Archive(Path(spec["folder"])).mark_complete("u-1", record)
    assert judged()["verdict"] == "pass"


@pytest.mark.parametrize("printed", ["", "no JSON", None])
def test_what_is_no_result_stays_what_it_is(spec: dict[str, Any], printed: str | None) -> None:
    measured(spec)
    result, said = again(printed or "", spec)
    assert result["verdict"] == "unknown" and said == []
