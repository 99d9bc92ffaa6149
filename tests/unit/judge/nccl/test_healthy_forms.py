"""Healthy logs in the forms that programs, launchers, terminals and exports give them are not refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Verdict, judge
from busbar.judge.nccl.log.patterns import Message, find_message
from busbar.judge.nccl.log.records import Stage
from tests.unit.judge.nccl.logs import WANT, Made

BOUNDED = settings(max_examples=30)
STAGES: tuple[Stage, ...] = ("before", "table", "after")
PROCESS = "worker-1:43:90 [3] "
LINES = [
    "perl: warning: Please check that your locale settings:",
    'perl: warning: Falling back to the standard locale ("C").',
    "locale: Cannot set LC_CTYPE to default locale: No such file or directory",
    "bash: cannot set terminal process group (-1): Inappropriate ioctl for device",
    "bash: no job control in this shell",
    "mesg: ttyname failed: Inappropriate ioctl for device",
    "tput: No value for $TERM and no -T specified",
    "Unable to use a TTY - input is not a terminal or the right kind of file",
    "Authorization required, but no authorization protocol specified",
    "/usr/bin/xauth:  file /root/.Xauthority does not exist",
    "Warning: untrusted X11 forwarding setup failed: xauth key data not generated",
    "whoami: cannot find name for user ID 1000",
    "sudo: unable to resolve host worker-1: Name or service not known",
    "Could not chdir to home directory /home/user: No such file or directory",
    "-bash: ulimit: open files: cannot modify limit: Operation not permitted",
    "libnuma: Warning: cpu argument 9 is out of range",
    '[launcher:00010] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages',
    "[worker-1:00041] mca_base_component_repository_open: unable to open mca_pml_ucx: libucp.so.0: cannot "
    "open shared object file: No such file or directory (ignored)",
    "XID errors: none",
    "ran: 12 errors: 0 skipped: 3",
    "Using error correction: enabled",
]


@pytest.mark.parametrize("stage", STAGES)
def test_lines_of_shells_and_launchers_refuse_no_log_wherever_they_stand(stage: Stage) -> None:
    log = Made().lines_with("here", stage)
    at = log.index("here")
    assert judge([*log[:at], *LINES, *log[at + 1 :]], WANT).reasons == []


@pytest.mark.parametrize(
    "line",
    [
        "Passed: 15 Failed: 1 Skipped: 0", "error count .............. 10", "XID errors: 3", "exit_code: 137",
        "failed: 0 exit code: 9", "errors: 0 oom_killed: 2",
    ],
)  # fmt: skip
def test_a_count_above_zero_is_shown(line: str) -> None:
    verdict = judge(Made().lines_with(line, "table"), WANT)
    assert not verdict.passed or [remark.text for remark in verdict.remarks] == [line]


@BOUNDED
@given(
    st.sampled_from(
        ["[3] 12.345678 ncclNetInit:486 NCCL TRACE ", "[3] 12.345678 ncclTopo:7 NCCL TRACE ", "NCCL CALL "]
    ),
    st.sampled_from(
        ["state 3", "failed to find 7", "ncclAllReduce(0x7f,2,3)", "Channel 00/0 : 0 -> 1 via NET/"]
    ),
    st.sampled_from(STAGES),
)
def test_the_lines_of_a_trace_change_nothing(head: str, text: str, stage: Stage) -> None:
    assert judge(Made().lines_with(f"worker-1:43:90 {head}{text}", stage), WANT).reasons == []


@pytest.mark.parametrize(
    "where",
    [
        "init.cc:99 (ncclInit) ",
        "init.cc:99 ",
        "",
        "[2026-05-05 06:16:47] x.cc:7 (f<int>) ",
        "int cm_req_handle_error_entry(nccl_net_ofi_context_t*, fid_cq*, fi_cq_err_entry*, uint16_t):46 ",
    ],
)
def test_the_time_and_function_before_a_warning_hide_no_process(where: str) -> None:
    head = f"{PROCESS}{where}NCCL WARN "
    assert find_message(f"{head}text") == Message(0, len(head), "WARN", "worker-1", "43")


@BOUNDED
@given(st.sampled_from(["", PROCESS]), st.sampled_from(["OK", "PASS"]), st.sampled_from(["p2p", "net"]))
def test_diagnostics_of_nccl_that_passed_are_shown(process: str, result: str, kind: str) -> None:
    lines = ["=== NCCL Diagnostics ===", f"[{result}]   {kind}: verified 56 paths", "completed in 7 ms"]
    log = Made().lines()
    verdict = judge([*log[:20], *(f"{process}NCCL DIAG {line}" for line in lines), *log[20:]], WANT)
    assert verdict.passed and verdict.check("warnings").evidence == f"{process}NCCL DIAG {lines[1]}"


@BOUNDED
@given(st.sampled_from(["", PROCESS]), st.sampled_from(["FAIL", "WARN", "ERROR", "INFO"]))
def test_diagnostics_of_nccl_that_failed_fail_the_log(process: str, result: str) -> None:
    line = f"{process}NCCL DIAG [{result}] net: only 3/8 devices passed verification"
    verdict = judge(Made().lines_with(line), WANT)
    assert verdict.verdict == "fail" and verdict.diagnoses[0].name == "nccl-diagnostics"


def test_columns_behind_a_row_that_is_not_quoted_are_no_part_of_it() -> None:
    assert judge([f"{line},2026-11-25T10:00:00.000+0000,gpu-1" for line in Made().lines()], WANT).passed


@BOUNDED
@given(st.integers(60, 160), st.sampled_from(["\n", "\r\n"]))
def test_a_log_that_a_terminal_wrapped_is_read_or_leaves_no_verdict(width: int, end: str) -> None:
    log = [line[i : i + width] for line in Made().lines() for i in range(0, max(len(line), 1), width)]
    verdict = judge([line + end for line in log], WANT)
    assert verdict.verdict != "fail" and (verdict.passed or width > 80), verdict.reasons


@BOUNDED
@given(st.integers(0, 39))
def test_a_line_behind_one_of_many_of_equal_length_is_not_its_rest(at: int) -> None:
    rows = [line.ljust(120) for line in Made().lines() if line.lstrip()[:1].isdigit()] * 8
    (found,) = (judge([*rows[:at], "mpirun: killing job...", *rows[at:]], WANT).check("warnings").reason,)
    assert "job-cancelled" in found


def test_rows_of_one_half_only_leave_no_verdict() -> None:
    log = [line if not line.lstrip()[:1].isdigit() else " ".join(line.split()[:9]) for line in Made().lines()]
    verdict = judge(log, WANT)
    assert verdict.verdict == "unknown"
    assert verdict.check("completeness").code == "completeness.damaged"


@BOUNDED
@given(st.integers(1, 4))
def test_an_average_of_more_rows_than_the_excerpt_has_leaves_no_verdict(cut: int) -> None:
    log = [line for line in Made().lines() if not line.startswith("# nThread")]
    rows = [i for i, line in enumerate(log) if line.lstrip()[:1].isdigit()]
    log = [line for i, line in enumerate(log) if i not in rows[:cut]]
    at = next(i for i, line in enumerate(log) if line.startswith("# Avg"))
    log[at] = "# Avg bus bandwidth    : 200.5 "
    check = judge(log, WANT).check("completeness")
    assert (check.status, check.code) == ("unknown", "completeness.average")


def test_hosts_of_one_name_leave_no_verdict_where_nccl_counts_more() -> None:
    made = Made()
    log = [line.replace("worker-0", "nccl").replace("worker-1", "nccl") for line in made.lines()]
    counts = "nccl:40:90 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"
    assert judge([*log[:30], counts, *log[30:]], WANT).check("ranks").status == "unknown"
    assert judge(log, WANT).check("ranks").status == "fail"


@BOUNDED
@given(st.integers(0, 4), st.booleans(), st.sampled_from([1.5, 40]))
def test_an_iteration_that_stalled_leaves_no_verdict(row: int, in_place: bool, factor: float) -> None:
    log = Made().lines()
    at = [i for i, line in enumerate(log) if line.lstrip()[:1].isdigit()]
    head = next(i for i, line in enumerate(log) if "algbw" in line)
    log[head] = log[head].replace("#wrong", "#wrong  i_min  i_max  i_p99  i_cv%")
    for i in at:
        words = log[i].split()
        for end, place in ((13, True), (9, False)):
            mean = float(words[end - 4])
            slowest = mean * (factor if (i, place) == (at[row], in_place) else 1.1)
            words[end:end] = [f"{mean * 0.9:.0f}", f"{slowest:.0f}", f"{slowest:.0f}", "7.0"]
        log[i] = "  ".join(words)
    check = judge(log, WANT).check("stability")
    assert (check.status, check.code == "stability.iterations") == (
        ("unknown", True) if factor > 5 else ("pass", False)
    )


def cycles(*peaks: float) -> Verdict:
    """A log in which the size sweep runs once for each of PEAKS."""
    log, sweeps = Made().lines(), []
    for peak in peaks:
        made = Made(peak=peak)
        sweeps.append([line for line in made.lines() if line.lstrip()[:1].isdigit()])
    rows = [row for sweep in sweeps for row in sweep]
    first = next(i for i, line in enumerate(log) if line.lstrip()[:1].isdigit())
    values = [float(row.split()[at]) for row in rows for at in (7, 11)]
    end = [line for line in log[first:] if not line.lstrip()[:1].isdigit()]
    average = f"# Avg bus bandwidth    : {sum(values) / len(values):g} "
    return judge([*log[:first], *rows, *(average if "# Avg" in line else line for line in end)], WANT)


def test_cycles_of_the_size_sweep_are_judged_by_the_worst() -> None:
    verdict = cycles(390.0, 389.0, 388.0)
    assert verdict.reasons == [] and verdict.busbw_gbps == 388.0
    assert not cycles(390.0, 200.0, 390.0).passed


def test_the_parts_of_a_line_in_a_cri_file_are_joined() -> None:
    log = []
    for line in Made().lines():
        half = len(line) // 2
        stamp = "2026-05-05T06:16:47.123456789Z stdout"
        log += [f"{stamp} P {line[:half]}", f"{stamp} F {line[half:]}"]
    assert judge(log, WANT).reasons == []


@pytest.mark.parametrize(("shift", "diagnosed"), [(-1, False), (4, True)])
def test_an_hour_that_is_set_back_is_no_stall(shift: int, diagnosed: bool) -> None:
    log = Made().lines()
    rows = [i for i, line in enumerate(log) if line.lstrip()[:1].isdigit()]
    log = [
        f"2026-10-25 {2 + (shift if i > rows[2] else 0):02d}:{i % 60:02d}:00 {line}"
        for i, line in enumerate(log)
    ]
    names = [each.name for each in judge(log, WANT).diagnoses]
    assert ("stall-between-rows" in names) is diagnosed


def test_an_allocation_that_salloc_gives_back_was_not_cancelled() -> None:
    end = ["salloc: Relinquishing job allocation 812", "salloc: Job allocation 812 has been revoked."]
    assert judge([*Made().lines(), *end], WANT).reasons == []
    assert judge([*Made().lines(), end[1]], WANT).verdict == "fail"


def test_hcas_that_gib_opened_are_read() -> None:
    log = [line.replace("NET/IB : Using", "NET/gIB : Using") for line in Made().lines()]
    assert judge(log, WANT).check("hcas").status == "pass"


def test_a_rail_may_be_a_device_of_two_planes() -> None:
    made = Made()
    made.info = [
        f"{host}:40:90 [0] NCCL INFO NET/IB : Made virtual device [{device}] name=a+b speed=800000 ndevs=2"
        for host in made.hosts
        for device in range(8)
    ]
    for rate, status in ((800, "pass"), (400, "fail")):
        want = WANT.model_copy(update={"rate_gbps": rate})
        assert judge(made.lines(), want).check("rails").status == status
