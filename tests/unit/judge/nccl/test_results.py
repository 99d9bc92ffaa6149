"""NCCL-tests' own JSON is named and not read; several files are judged in one call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from busbar.judge.nccl import Expectation, judge_log, read_file
from tests.support.cli import busbar
from tests.unit.judge.nccl.logs import Made

PROFILE = ("--profile", "h100-ib-8x400", "--expect-nodes", "2")


def test_the_json_of_nccl_tests_is_named_and_no_log_beside_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"version": 3, "args": ["/opt/all_reduce_perf", "-J", "run.json"]}))
    file.with_suffix(".log").write_text("\n".join(Made().lines()))
    verdict = judge_log(read_file(str(file)), Expectation())
    assert verdict.verdict == "unknown" and verdict.busbw_gbps is None
    assert verdict.check("source").reason == "the log is the JSON of nccl-tests, which is not read"


def test_the_json_of_a_verdict_has_every_row_of_every_table(tmp_path: Path) -> None:
    file = tmp_path / "two.log"
    file.write_text("\n".join([*Made().lines(), *Made().lines()]))
    _, text = check(str(file), "--json")
    tables = json.loads(text)["tables"]
    assert [table["collective"] for table in tables] == ["all_reduce", "all_reduce"]
    rows = sum(line.lstrip()[:1].isdigit() for line in Made().lines())
    assert [len(table["rows"]) for table in tables] == [rows, rows]


def check(*arguments: str) -> tuple[int, str]:
    done = busbar("nccl", "check", *arguments)
    return done.exit_code, done.stdout


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    """A log that passes, one without evidence, one that fails."""
    slow = Made()
    slow.peak = 100.0
    texts = [Made().lines(), [x for x in Made().lines() if "NCCL" not in x], slow.lines()]
    for name, text in zip("abc", texts, strict=True):
        (tmp_path / f"{name}.log").write_text("\n".join(text))
    return [str(tmp_path / f"{name}.log") for name in "abc"]


@pytest.mark.parametrize(("which", "code"), [([0, 0], 0), ([0, 1], 2), ([2, 1], 1), ([0, 1, 2], 1)])
def test_of_several_files_each_has_a_line_and_the_worst_exit_code_counts(
    logs: list[str], which: list[int], code: int
) -> None:
    files = list(dict.fromkeys(logs[i] for i in which))
    found, text = check(*(logs[i] for i in which), *PROFILE)
    assert found == code
    if len(files) > 1:
        assert [file in line for file, line in zip(files, text.splitlines(), strict=True)] == [True] * len(
            files
        )


def test_of_several_files_the_json_is_a_list_and_no_report_is_written(
    logs: list[str], tmp_path: Path
) -> None:
    _, text = check(*logs, *PROFILE, "--json")
    assert [v["verdict"] for v in json.loads(text)] == ["pass", "unknown", "fail"]
    done = busbar("nccl", "check", *logs, "--html", str(tmp_path / "report.html"))
    assert done.exit_code == 64 and "--html and --svg are for one FILE" in done.stderr
