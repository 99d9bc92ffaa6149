"""What launchers and collectors put around lines changes nothing; what is inside is repaired or refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from busbar.judge.nccl import judge, read_lines
from busbar.judge.nccl.log import reader
from busbar.judge.nccl.log.clean import clean
from busbar.judge.nccl.log.patterns import TYPES, row_start
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases
from tests.unit.judge.nccl.test_records import KNOWN

CTIME = "Mon Sep  2 10:00:00 2024"

WRAPPERS: dict[str, Callable[[str], str]] = {
    "nothing": lambda t: t,
    "Open MPI 4 --tag-output": lambda t: f"[1,0]<stdout>:{t}",
    "Open MPI 4 stddiag": lambda t: f"[1,12]<stddiag>:{t}",
    "Open MPI 4 --timestamp-output": lambda t: f"{CTIME}[1,0]<stdout>:{t}",
    "Open MPI 5 --output tag": lambda t: f"[1,0]<stdout>: {t}",
    "Open MPI 5 tag-detailed": lambda t: f"[1,0][worker-0:57]<stdout>: {t}",
    "Open MPI 5 tag-fullname": lambda t: f"[prterun-launcher-19@1,0]<stdout>: {t}",
    "Open MPI 5 rank": lambda t: f"[0]<stdout>: {t}",
    "Open MPI 5 with a time in front": lambda t: f"[{CTIME}][1,0]<stdout>: {t}",
    "srun -l": lambda t: f"0: {t}",
    "srun -l of a wide job": lambda t: f"0000: {t}",
    "srun -l over a time, quoted": lambda t: f"> 0: 2026-05-05 06:16:47 {t}",
    "blanks of a web page": lambda t: t.replace(" ", "\xa0"),
    "pdsh twice": lambda t: f"10.0.87.143: 10.0.87.143: {t}",
    "carriage returns": lambda t: f"{t}\r",
    "indented": lambda t: f"      {t}",
    "kubectl --timestamps": lambda t: f"2026-05-05T06:16:47.123456789Z {t}",
    "kubectl --timestamps, other zone": lambda t: f"2026-05-05T06:16:47.123456789+02:00 {t}",
    "kubectl --prefix": lambda t: f"[pod/nccl-launcher-x7k2p/mpi-launcher] {t}",
    "kubectl --prefix --timestamps": lambda t: f"[pod/nccl-x/mpi] 2026-05-05T06:16:47.1Z {t}",
    "kubectl over tagged output": lambda t: f"[pod/nccl-x/mpi] 2026-05-05T06:16:47.1Z [1,0]<stdout>:{t}",
    "CRI log file": lambda t: f"2026-05-05T06:16:47.123456789Z stdout F {t}",
    "docker json file": lambda t: json.dumps({"log": t + "\n", "stream": "stdout", "time": "2026"}),
    "docker json file with blanks": lambda t: json.dumps({"time": "2026", "log": t + "\n"}),
    "json of a log collector": lambda t: json.dumps({"@timestamp": "2026-05-05T06:16:47Z", "message": t}),
    "json of a cloud": lambda t: json.dumps({"insertId": "x", "textPayload": t, "severity": "INFO"}),
    "journalctl -o json": lambda t: json.dumps({"_PID": "12", "MESSAGE": t}),
    "stern": lambda t: f"nccl-launcher-x7k2p mpi {t}",
    "journalctl": lambda t: f"Sep 02 10:00:00 node-1 nccl-test[1234]: {t}",
    "journalctl -o short-precise": lambda t: f"Sep 02 10:00:00.123456 node-1.dc mpirun[57]: {t}",
    "journalctl -o short-iso": lambda t: f"2026-05-05T06:16:47+0000 node-1 slurmstepd[9]: {t}",
    "journalctl over tagged output": lambda t: f"Sep 02 10:00:00 node-1 mpirun[57]: [1,0]<stdout>:{t}",
    "Open MPI 5 tag-detailed and tag-fullname": lambda t: f"[prterun-l-19@1,0][worker-0:57]<stdout>: {t}",
    "ts": lambda t: f"Sep 02 10:00:00 {t}",
    "colours": lambda t: f"\x1b[1;32m{t}\x1b[0m",
    "NULs": lambda t: f"\x00{t}\x00",
    "a quote": lambda t: f"> {t}",
    "a program in Go": lambda t: f"2026/11/25 10:00:00 {t}",
    "a program in Go, precise": lambda t: f"2026/11/25 10:00:00.123456 {t}",
    "klog": lambda t: f"I1125 10:00:00.000000       1 main.go:42] {t}",
    "klog over tagged output": lambda t: f"I1125 10:00:00.000000 17 pkg/run.go:7] [1,0]<stdout>:{t}",
}


@pytest.mark.parametrize("around", [*WRAPPERS.values(), *KNOWN.values()], ids=[*WRAPPERS, *KNOWN])
def test_a_good_log_passes_whatever_is_around_its_lines(around: Callable[[str], str]) -> None:
    verdict = judge([around(line) for line in Made().lines()], WANT)
    assert verdict.reasons == []
    assert (verdict.ranks, verdict.nodes, verdict.transport) == (16, 2, "gpudirect-rdma")


def test_nothing_is_left_of_what_is_around_a_line() -> None:
    line = "# Avg bus bandwidth : 390.2"
    # The words that stern puts in front are those of no other line.
    assert [name for name, wrap in WRAPPERS.items() if name != "stern" and clean(wrap(line)) != [line]] == []


@pytest.mark.parametrize("rank", [3, 12, 3519])
def test_the_label_of_srun_is_no_part_of_a_line(rank: int) -> None:
    assert clean(f"{rank}: the words of a program") == ["the words of a program"]


def test_a_row_that_never_ends_is_damage() -> None:
    log = Made().lines()
    at = next(i for i, line in enumerate(log) if line.lstrip().startswith("1073741824"))
    log.insert(at, log[at][:54])
    (run,) = read_lines(log).runs
    assert (run.damaged, len(run.rows)) == (1, 5)
    assert judge(log, WANT).check("completeness").status == "unknown"


@pytest.mark.parametrize("cut", [False, True])
def test_a_row_with_statistics_is_put_together_again_also_without_its_header(cut: bool) -> None:
    log = Made().lines()
    at = next(i for i, line in enumerate(log) if line.lstrip().startswith("1073741824"))
    header = next(i for i, line in enumerate(log) if "#wrong" in line)
    log[header] = log[header].replace("#wrong", "#wrong i_min i_max i_p99 i_cv%")
    for i, line in enumerate(log):
        if line.lstrip()[:1].isdigit():
            tokens = line.split()
            log[i] = " ".join([*tokens[:9], "10.1 12.2 11.3 0.5", *tokens[9:], "10.1 12.2 11.3 0.5"])
    head, values = " ".join(log[at].split()[:5]), " ".join(log[at].split()[5:])
    log[at : at + 1] = [head, "worker-0:40:90 [0] NCCL INFO comm 0x1 rank 0", values]
    if cut:
        log = [
            line
            for line in log
            if not line.startswith("#") or "Rank" in line or "values" in line or "Avg" in line
        ]
    (run,) = read_lines(log).runs
    assert (len(run.rows), run.damaged, run.orphans) == (5, 0, 0)


def test_a_row_of_one_half_before_the_numbers_of_two_is_damage() -> None:
    log = Made().lines()
    at = next(i for i, line in enumerate(log) if line.lstrip().startswith("1073741824"))
    words = log[at].split()
    log[at : at + 1] = [" ".join(words[:9]), " ".join(words[5:])]
    assert judge(log, WANT).check("completeness").code == "completeness.damaged"


def test_arguments_that_stand_twice_before_a_table_are_of_two_programs() -> None:
    log = [line for each in Made().lines() for line in ([each] * 2 if "nThread" in each else [each])]
    assert judge(log, WANT).check("ranks").code == "ranks.several_programs"


def test_a_row_behind_the_summary_is_counted() -> None:
    log = Made().lines()
    rows = [line for line in log if line.lstrip()[:1].isdigit()]
    (run,) = read_lines([*log, rows[-1]]).runs
    assert run.rows_after_summary == 1


def test_a_device_list_and_rows_alone_are_a_table_of_their_own() -> None:
    second = [x for x in Made().lines() if x.startswith("#  Rank") or x.lstrip()[:1].isdigit()]
    runs = read_lines([*Made().lines(), *second]).runs
    assert [(len(run.preamble.ranks), len(run.rows)) for run in runs] == [(16, 5), (16, 5)]


def test_two_headers_behind_one_device_list_are_of_two_programs() -> None:
    log = [line for each in Made().lines() for line in ([each] * 2 if "#wrong" in each else [each])]
    assert judge(log, WANT).check("ranks").code == "ranks.several_programs"


def test_a_header_that_is_cut_off_is_no_error() -> None:
    log = [line.partition("#wrong")[0] if "#wrong" in line else line for line in Made().lines()]
    assert [len(run.rows) for run in read_lines(log).runs] == [5]


def test_numbers_without_their_row_are_damage() -> None:
    log = Made().lines()
    log.insert(-6, "    579.3    0.00    0.00      0    137.0    0.00    0.00      0")
    assert judge(log, WANT).check("completeness").status == "unknown"


def test_a_summary_that_sticks_to_a_message_is_still_read() -> None:
    log = Made().lines()
    at = next(i for i, line in enumerate(log) if line.startswith("# Out of bounds"))
    log[at] += (
        "worker-1:40:90 [0] NCCL INFO comm 0x1 rank 8 nranks 16 cudaDev 0 busId 6000 - Destroy COMPLETE"
    )
    assert judge(log, WANT).reasons == []


@pytest.mark.parametrize(
    ("columns", "values", "end"),
    [
        ("i_min i_max i_p99 i_cv%", ["10.1", "12.2", "11.3", "0.5"], "2026-05-05 06:16:47"),
        ("#bitdiff", ["0"], ""),  # nccl-tests 2.20 with its bitwise check
    ],
)
def test_more_columns_behind_each_half_are_left_out(columns: str, values: list[str], end: str) -> None:
    def wider(line: str) -> str:
        if "#wrong" in line:
            return line.replace("#wrong", f"#wrong {columns}") + " timestamp" * bool(end)
        if not line.lstrip()[:1].isdigit():
            return line
        tokens = line.split()
        return " ".join([*tokens[:9], *values, *tokens[9:], *values, end])

    verdict = judge([wider(line) for line in Made().lines()], WANT)
    assert verdict.reasons == []
    assert verdict.busbw_gbps is not None and verdict.busbw_gbps > 389


def test_a_row_of_every_type_is_found_wherever_it_begins() -> None:
    for kind in TYPES.split("|"):
        assert row_start(f"8 2 {kind} sum -1") is not None
        assert row_start(f"some words 8 2 {kind}") is not None
        assert row_start(f"8 2 x{kind}") is None


@pytest.mark.parametrize("name", cases())
def test_a_message_is_read_the_same_way_with_and_without_the_quick_look_at_its_head(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Log(cases()[name]).lines
    quick = judge(lines, WANT)
    monkeypatch.setattr(reader, "find_info", lambda line: None)
    assert judge(lines, WANT) == quick
