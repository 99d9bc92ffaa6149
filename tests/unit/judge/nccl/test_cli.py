"""The commands: exit codes, JSON, reports. What only a process shows is run as one, the rest in this one."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from typer.testing import Result

from busbar.cli.nccl import CHECK_EXAMPLES
from busbar.judge.nccl import Expectation, judge_log, read_file
from busbar.judge.nccl.expected import profiles
from tests.support.cli import busbar as run
from tests.unit.judge.nccl.logs import Made

ROOT = Path(__file__).resolve().parents[4]
PROFILE = ("--profile", "h100-ib-8x400", "--expect-nodes", "2")


def busbar(*arguments: str) -> Result:
    return run("nccl", *arguments)


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.log"
    path.write_text("\n".join(Made().lines()))
    return str(path)


def test_all_profiles_are_listed_with_their_figures_and_sources() -> None:
    done = busbar("profiles")
    assert done.exit_code == 0
    blocks = {block.partition(":")[0]: block for block in done.output.strip().split("\n\n")}
    assert sorted(blocks) == profiles.names()
    for name, block in blocks.items():
        assert profiles.load(name).source in block
    counts = re.findall(r"(\d+) hosts?: [\d.]+ GB/s", blocks["gb200-multirack"])
    assert counts == ["1", "2", "18", "32"], "also of a rack, and of the system that was measured"
    assert "2 hosts: 719.7 GB/s, floor 647.73 GB/s" in blocks["b200-ib-8x400"]
    assert "no figure is known" in blocks["a40"]


def test_a_command_of_a_group_loads_no_other_group() -> None:
    script = (
        "import sys; from busbar.cli.main import build; build(['nccl', 'check']); "
        "print(*(name for name in sys.modules if name.startswith('busbar.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "busbar.cli.nccl" in loaded
    assert not loaded & {"busbar.cli.before", "busbar.capability"}


def test_a_pass_is_zero_and_says_so_first(good: str) -> None:
    done = busbar("check", good, *PROFILE)
    assert done.exit_code == 0 and done.stdout.startswith("PASS"), done.stderr


@pytest.mark.parametrize(("nodes", "code"), [("2", 0), ("3", 1)])
def test_a_reader_that_stops_does_not_change_the_exit_code(good: str, nodes: str, code: int) -> None:
    words = ["nccl", "check", good, *PROFILE[:3], nodes, "--full"]
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "busbar", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(("closed", "code"), [("<&-", 2), ("< examples/nccl/h100-2-nodes.log >&- 2>&-", 0)])
def test_a_closed_stream_is_an_empty_one(closed: str, code: int) -> None:
    command = f"{sys.executable} -m busbar nccl check - {shlex.join(PROFILE)} {closed}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument"),
        (("/nowhere/at/all",), "/nowhere/at/all"),
        (("/dev/null", "--profile", "none-such"), "none-such"),
        (("/dev/null", "--expect-nodes", "0"), "--expect-nodes': Input should be greater than or equal to 1"),
        (("/dev/null", "--tolerance", "2"), "--tolerance: Input should be less than 1, got 2.0"),
        (("/dev/null", "--transport", "pigeon"), "pigeon"),
        (("/dev/null", "--expected-busbw", "-4"), "--expected-busbw: Input should be greater than 0"),
        (("/dev/null", "--accept-warn", "short"), "--accept-warn: String should have at least 8 characters"),
    ],
)
def test_bad_usage_is_64_and_names_the_value(arguments: tuple[str, ...], message: str) -> None:
    done = busbar("check", *arguments)
    assert (done.exit_code, message in done.stderr) == (64, True), done.stderr
    assert isinstance(done.exception, SystemExit), "an error is a message, not a traceback"


def test_the_report_names_no_folder_of_this_machine(good: str, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    words = ["check", good, "--html", str(page), f"--svg={tmp_path}/r.svg", "--topology-file", "/opt/t.xml"]
    busbar(*words)
    command = f"busbar nccl check {Path(good).name} --html r.html --svg=r.svg --topology-file /opt/t.xml"
    assert command in page.read_text() and str(tmp_path) not in page.read_text()


def test_json_html_and_svg_come_from_one_verdict(good: str, tmp_path: Path) -> None:
    page, picture = tmp_path / "r.html", tmp_path / "r.svg"
    done = busbar("check", good, *PROFILE, "--json", "--html", str(page), "--svg", str(picture))
    verdict = json.loads(done.stdout)
    assert verdict["passed"] and verdict["log_sha256"]
    assert picture.read_text().startswith("<svg") and "ceiling" in picture.read_text()
    html = page.read_text()
    assert html.index("Pass") < html.index("Checks"), "the verdict comes first"
    assert "http" not in html.replace("http://www.w3.org/2000/svg", ""), "the report loads nothing"
    assert "prefers-color-scheme: dark" in html and "@media print" in html


def test_a_log_without_a_table_has_no_picture_but_a_verdict(tmp_path: Path) -> None:
    path, picture = tmp_path / "empty.log", tmp_path / "r.svg"
    path.write_text("nothing")
    done = busbar("check", str(path), *PROFILE, "--svg", str(picture))
    assert done.exit_code == 2 and "no table" in done.stderr and not picture.exists()


def test_text_of_a_log_cannot_become_markup(tmp_path: Path) -> None:
    made = Made(
        info=["worker-0:1:1 [0] x.cc:1 NCCL WARN <script>alert(1)</script>"], hosts=["worker-0", "<b>worker"]
    )
    path, page = tmp_path / "bad.log", tmp_path / "bad.html"
    path.write_text("\n".join(made.lines()))
    busbar("check", str(path), *PROFILE, "--html", str(page))
    assert "<script>" not in page.read_text() and "<b>worker" not in page.read_text()


def test_a_report_that_cannot_be_written_is_a_clear_error(good: str) -> None:
    done = busbar("check", good, *PROFILE, "--html", "/nowhere/r.html")
    assert done.exit_code == 64
    assert done.stderr == "error: /nowhere/r.html not written: No such file or directory\n"


@pytest.mark.parametrize("option", ["--html", "--svg"])
def test_a_log_is_not_overwritten_by_a_report(option: str, good: str) -> None:
    before = Path(good).read_bytes()
    done = busbar("check", good, *PROFILE, option, good)
    assert (done.exit_code, Path(good).read_bytes()) == (64, before)
    assert f"{good} not written: it exists and is not such a report. Fix: name another file" in done.stderr


@pytest.mark.parametrize("example", CHECK_EXAMPLES)
def test_the_examples_of_the_help_run(
    example: str, good: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = Path(good).read_bytes()
    Path("launcher.log").write_bytes(text)
    Path("launcher.log.zst").write_bytes(zstandard.compress(text))
    mine = next(part for part in example.split("|") if "busbar" in part)
    done = run(*shlex.split(mine)[1:], stdin=text)
    assert done.exit_code in (0, 1, 2), done.stderr
    assert done.stdout.strip()


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
    tables = json.loads(busbar("check", str(file), "--json").stdout)["tables"]
    assert [table["collective"] for table in tables] == ["all_reduce", "all_reduce"]
    rows = sum(line.lstrip()[:1].isdigit() for line in Made().lines())
    assert [len(table["rows"]) for table in tables] == [rows, rows]


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    """A log that passes, one without evidence, one that fails."""
    slow = Made(peak=100.0)
    texts = [Made().lines(), [x for x in Made().lines() if "NCCL" not in x], slow.lines()]
    for name, text in zip("abc", texts, strict=True):
        (tmp_path / f"{name}.log").write_text("\n".join(text))
    return [str(tmp_path / f"{name}.log") for name in "abc"]


@pytest.mark.parametrize(("which", "code"), [([0, 0], 0), ([0, 1], 2), ([2, 1], 1), ([0, 1, 2], 1)])
def test_of_several_files_each_has_a_line_and_the_worst_exit_code_counts(
    logs: list[str], which: list[int], code: int
) -> None:
    files = list(dict.fromkeys(logs[i] for i in which))
    done = busbar("check", *(logs[i] for i in which), *PROFILE)
    assert done.exit_code == code
    lines = done.stdout.splitlines()
    assert (
        len(files) == 1 or [line for file, line in zip(files, lines, strict=True) if file not in line] == []
    )


def test_of_several_files_the_json_is_a_list_and_no_report_is_written(
    logs: list[str], tmp_path: Path
) -> None:
    text = busbar("check", *logs, *PROFILE, "--json").stdout
    assert [v["verdict"] for v in json.loads(text)] == ["pass", "unknown", "fail"]
    done = busbar("check", *logs, "--html", str(tmp_path / "report.html"))
    assert done.exit_code == 64 and "--html and --svg are for one FILE" in done.stderr
