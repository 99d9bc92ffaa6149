"""nccl-tests' own JSON is judged as the log of the same run; several files are judged in one call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from busbar.judge.nccl import Expectation, judge, judge_log, read_file
from busbar.judge.nccl.log.export import as_object
from tests.support.cli import busbar
from tests.unit.judge.nccl.logs import Made

WANT = Expectation(profile="h100-ib-8x400", nodes=2)
PROFILE = ("--profile", "h100-ib-8x400", "--expect-nodes", "2")


def half(words: list[str]) -> dict[str, Any]:
    time, algbw, busbw, wrong = words
    return {
        "time": float(time), "alg_bw": float(algbw), "bus_bw": float(busbw),
        "nwrong": None if wrong == "N/A" else float(wrong),
    }  # fmt: skip


def report(made: Made, spelling: str = "bandwidth") -> dict[str, Any]:
    """What nccl-tests writes with -J for the log that MADE prints."""
    lines = made.lines()
    rows = [line.split() for line in lines if line.lstrip()[:1].isdigit()]
    devices = [
        {
            "rank": i, "group": 0, "pid": int(line.split()[6]), "hostname": made.hosts[i // made.gpus],
            "device": i % made.gpus, "device_hex": line.partition("[")[2].partition("]")[0],
            "device_info": made.gpu,
        }
        for i, line in enumerate(x for x in lines if x.startswith("#  Rank"))
    ]  # fmt: skip
    average = next(line for line in lines if line.startswith("# Avg")).split()[-1]
    return {
        "version": 3, "start_time": "2026-05-05 10:00:00", "args": ["/opt/all_reduce_perf", "-J", "run.json"],
        "env": ["TOKEN=secret"], "nccl_version": 22807,
        "config": {
            "nthreads": 1, "ngpus": 1, "minimum_bytes": made.low, "maximum_bytes": made.high,
            "step_factor": 2, "warmup_iters": 5, "iterations": 20,
            "aggregated_iterations": 1, "validation": 1, "graph": 0,
            "devices": devices,
        },
        "results": [
            {
                "size": int(r[0]), "count": int(r[1]), "type": r[2], "redop": r[3], "root": f"{r[4]:>6}",
                "out_of_place": half(r[5:9]), "in_place": half(r[9:13]),
            }
            for r in rows
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        f"average_bus_{spelling}": {spelling: float(average), "okay": "unchecked"},
        "errors": [""],
    }  # fmt: skip


def without_tables(made: Made) -> list[str]:
    return [line for line in made.lines() if "NCCL" in line]


@pytest.mark.parametrize("spelling", ["bandwidth", "bandwidith"])
@pytest.mark.parametrize("log", [Made.lines, without_tables])
def test_rows_come_from_the_json_and_the_proof_from_the_log_beside_it(
    tmp_path: Path, spelling: str, log: Callable[[Made], list[str]]
) -> None:
    made = Made()
    file = tmp_path / "run.json"
    file.write_text(json.dumps(report(made, spelling)))
    file.with_suffix(".log").write_text("\n".join(log(made)))
    verdict = judge_log(read_file(str(file)), WANT)
    whole = judge(made.lines(), WANT)
    both = file.with_suffix(".log").read_bytes() + file.read_bytes()
    assert verdict.reasons == []
    assert (verdict.log_sha256, verdict.log_bytes) == (hashlib.sha256(both).hexdigest(), len(both))
    assert (verdict.busbw_gbps, verdict.ranks, verdict.nodes) == (whole.busbw_gbps, 16, 2)
    assert "secret" not in verdict.model_dump_json()


def slower(made: Made) -> None:
    made.peak = 196.0


def more_sizes(made: Made) -> None:
    made.high *= 2


def no_tables(made: Made) -> None:
    made.low *= 2


@pytest.mark.parametrize("change", [slower, more_sizes, no_tables])
def test_the_log_of_another_run_beside_the_json_proves_nothing(
    tmp_path: Path, change: Callable[[Made], None]
) -> None:
    file, other = tmp_path / "run.json", Made()
    file.write_text(json.dumps(report(Made())))
    change(other)
    lines = [x for x in other.lines() if change is not no_tables or not x.lstrip()[:1].isdigit()]
    file.with_suffix(".log").write_text("\n".join(lines))
    check = judge_log(read_file(str(file)), WANT).check("source")
    assert (check.status, "of another run" in check.reason) == ("unknown", True)


def test_a_log_of_several_runs_beside_the_json_has_to_hold_its_run(tmp_path: Path) -> None:
    file, other = tmp_path / "run.json", Made()
    file.write_text(json.dumps(report(Made())))
    other.name, other.peak = "all_gather", 350.0
    file.with_suffix(".log").write_text("\n".join([*other.lines(), *Made().lines()]))
    assert judge_log(read_file(str(file)), WANT).check("source").status == "pass"


def rows(text: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "line"} for row in text["runs"][0]["rows"]]


def test_the_json_has_the_rows_of_the_log(tmp_path: Path) -> None:
    file, log = tmp_path / "run.json", tmp_path / "other.log"
    file.write_text(json.dumps(report(Made()), indent=1))
    log.write_text("\n".join(Made().lines()))
    assert rows(as_object(read_file(str(file)))) == rows(as_object(read_file(str(log))))


def test_without_its_log_the_json_proves_no_transport(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(report(Made())))
    verdict = judge_log(read_file(str(file)), WANT)
    assert verdict.verdict == "unknown" and verdict.busbw_gbps == 390.0
    assert verdict.check("completeness").status == "pass", verdict.reasons


@pytest.mark.parametrize(
    "damage", ["cut", "no rows", "no devices", "wrong values", "an error", "log of other processes"]
)
def test_a_json_that_is_not_whole_or_not_of_this_log_does_not_pass(tmp_path: Path, damage: str) -> None:
    made = Made()
    found = report(made)
    if damage == "no rows":
        found["results"] = []
    if damage == "no devices":
        del found["config"]["devices"]
    if damage == "wrong values":
        found["results"][1]["in_place"]["nwrong"] = 3.0
    if damage == "an error":
        found["errors"] = ["Call to ibv_create_qp failed"]
    text = json.dumps(found)
    file = tmp_path / "run.json"
    file.write_text(text[: len(text) // 2] if damage == "cut" else text)
    log = "\n".join(without_tables(made))
    if damage == "log of other processes":
        log = log.replace(":40:", ":99:")
    file.with_suffix(".log").write_text(log)
    assert not judge_log(read_file(str(file)), WANT).passed


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


def test_of_several_files_the_json_is_a_list_and_reports_are_in_a_folder(
    logs: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "reports"
    _, text = check(*logs, *PROFILE, "--json", "--html", str(folder))
    assert [v["verdict"] for v in json.loads(text)] == ["pass", "unknown", "fail"]
    assert sorted(path.name for path in folder.iterdir()) == ["1-a.html", "2-b.html", "3-c.html"]
