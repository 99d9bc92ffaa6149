"""What is right is not refused, whatever its form: healthy and unusual logs keep their true reason."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Expectation, Verdict, judge, read_lines
from busbar.judge.nccl.log.known import Failure as Rule
from busbar.judge.nccl.log.known import failures as rules
from busbar.judge.nccl.log.patterns import Message, find_message
from busbar.judge.nccl.log.records import Stage
from busbar.judge.nccl.log.tables import infer
from tests.diagnosis_page import LINES
from tests.unit.judge.nccl.logs import FIRST_ROW, HEALTHY, WANT, Made, index, is_row
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import Case, Hosts, Program
from tests.unit.judge.nccl.tables import MIB, measurement, row, table

BOUNDED = settings(max_examples=30)
STAGES: tuple[Stage, ...] = ("before", "table", "after")
PROCESS = "worker-1:43:90 [3] "


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


WHERE = ("init.cc:99 (ncclInit) ", "init.cc:99 ", "", "[2026-05-05 06:16:47] x.cc:7 (f<int>) ",
         "int cm_req_handle_error_entry(nccl_net_ofi_context_t*, fid_cq*, uint16_t):46 ")  # fmt: skip


@pytest.mark.parametrize("where", WHERE)
def test_the_time_and_function_before_a_warning_hide_no_process(where: str) -> None:
    head = f"{PROCESS}{where}NCCL WARN "
    assert find_message(f"{head}text") == Message(0, len(head), "WARN", "worker-1", "43")


@BOUNDED
@given(st.sampled_from(["", PROCESS]), st.sampled_from(["OK", "PASS"]), st.sampled_from(["p2p", "net"]))
def test_diagnostics_of_nccl_that_passed_change_nothing(process: str, result: str, kind: str) -> None:
    lines = ["=== NCCL Diagnostics ===", f"[{result}]   {kind}: verified 56 paths", "completed in 7 ms"]
    log = Made().lines()
    verdict = judge([*log[:20], *(f"{process}NCCL DIAG {line}" for line in lines), *log[20:]], WANT)
    assert verdict.passed and verdict.diagnoses == [] and verdict.remarks == []


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
    rows = [line.ljust(120) for line in HEALTHY if is_row(line)] * 8
    verdict = judge([*rows[:at], "mpirun: killing job...", *rows[at:]], WANT)
    assert "job-cancelled" in verdict.check("warnings").reason


def test_rows_of_one_half_only_leave_no_verdict() -> None:
    log = [line if not is_row(line) else " ".join(line.split()[:9]) for line in Made().lines()]
    verdict = judge(log, WANT)
    assert verdict.verdict == "unknown"
    assert verdict.check("completeness").code == "completeness.damaged"


@BOUNDED
@given(st.integers(1, 4))
def test_an_average_of_more_rows_than_the_excerpt_has_leaves_no_verdict(cut: int) -> None:
    log = [line for line in Made().lines() if not line.startswith("# nThread")]
    rows = [i for i, line in enumerate(log) if is_row(line)]
    log = [line for i, line in enumerate(log) if i not in rows[:cut]]
    log[index(log, "# Avg")] = "# Avg bus bandwidth    : 200.5 "
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
    at = [i for i, line in enumerate(log) if is_row(line)]
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
    log = Made().lines()
    rows = [line for peak in peaks for line in Made(peak=peak).lines() if is_row(line)]
    values = [float(row.split()[at]) for row in rows for at in (7, 11)]
    end = [line for line in log[FIRST_ROW:] if not is_row(line)]
    average = f"# Avg bus bandwidth    : {sum(values) / len(values):g} "
    return judge([*log[:FIRST_ROW], *rows, *(average if "# Avg" in line else line for line in end)], WANT)


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
    rows = [i for i, line in enumerate(log) if is_row(line)]
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
    fused = [
        f"{host}:40:90 [0] NCCL INFO NET/IB : Made virtual device [{device}] name=a+b speed=800000 ndevs=2"
        for host in made.hosts
        for device in range(8)
    ]
    for rate, plane, rails, hcas in (
        (800, 400, "pass", "pass"),
        (400, 400, "fail", "pass"),
        (800, 200, "pass", "fail"),
    ):
        line = f"worker-1:40:90 [0] NCCL INFO NET/IB: [0] b:uverbs0:1/IB provider=Mlx5 speed={plane}000"
        made.info = [*fused, line]
        verdict = judge(made.lines(), WANT.model_copy(update={"rate_gbps": rate}))
        assert (verdict.check("rails").status, verdict.check("hcas").status) == (rails, hcas)


# ---- what only looks like a failure


@pytest.mark.parametrize(
    "rule", [r for r in rules() if r.lines and r.severity == "fatal"], ids=lambda r: r.name
)
def test_a_test_that_ended_with_an_error_did_not_hang(rule: Rule) -> None:
    started = [x for x in Made().lines() if x.startswith("#")]
    started = started[: next(i for i, x in enumerate(started) if "size" in x and "count" in x)]
    names = [d.name for d in judge([*started, LINES[rule.name]], WANT).diagnoses]
    assert rule.name in names and "hang" not in names
    assert "hang" in [d.name for d in judge(started, WANT).diagnoses]


def test_a_speed_of_the_port_that_nccl_finds_in_another_way_fails_no_log() -> None:
    line = (
        "worker-1:43:90 [3] misc/ibvwrap.cc:401 (wrap_ibv_query_port_speed) NCCL WARN Call to "
        "ibv_query_port_speed failed with error Protocol not supported errno 93"
    )
    verdict = judge(Made().lines_with(line, "before"), WANT)
    assert verdict.passed and [remark.text for remark in verdict.remarks] == [line]


@BOUNDED
@given(
    top=st.integers(3, 14), name=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "alltoall"])
)
def test_a_table_of_latencies_is_not_a_table_of_one_rank(top: int, name: str) -> None:
    made = Made(name=name, low=2**12, high=2 ** (top + 10), peak=0.01)
    log = [line for line in made.lines() if not line.startswith("#  Rank")]
    verdict = judge(log, WANT)
    assert verdict.check("ranks").code != "ranks.one"
    assert "mpi-not-effective" not in [d.name for d in verdict.diagnoses]


BANNER = "# nThread 1 nGpus 8 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 validation: 1"
SENTENCES = st.sampled_from(
    [
        "The summary said `{quoted}` at the end.",
        "We got {quoted} on the first try, which is fine.",
        'It must print "{quoted}" for every run',
        "Note that the last line ({quoted}) is a mean",
        "{quoted}",
        "> {quoted}",
    ]
)


@BOUNDED
@given(sentence=SENTENCES, position=st.integers(0, 10**6), data=st.data())
def test_prose_that_quotes_the_log_is_not_a_second_program(
    sentence: str, position: int, data: st.DataObject
) -> None:
    log = Made().lines()
    own = [x for x in log if x.startswith(("# Avg", "# Out of bounds"))]
    foreign = ["# Avg bus bandwidth    : 96.4945 ", "# Out of bounds values : 0 OK", BANNER]
    inside_a_sentence = sentence.partition("{")[0].strip() not in ("", ">")
    quoted = data.draw(st.sampled_from(foreign if inside_a_sentence else own))
    # behind the table, where an article goes on
    end = len(log) - next(i for i, x in enumerate(reversed(log)) if x.startswith("# Avg"))
    at = end + position % (len(log) - end + 1)
    text = [*log[:at], sentence.format(quoted=quoted.strip()), *log[at:]]
    assert judge(text, WANT).reasons == []


LAYOUTS = ("2.0", "2.10", "2.13", "2.17.8")


def unnamed(name: str, layout: str, hosts: int, gpus: int, scaled: bool = False) -> Log:
    """A log of a program that does not print its name."""
    program = Program.model_validate(
        {"name": name, "layout": layout, "sizes": ["1M", "1G"], "step": 4, "busbw": 200.0, "scaled": scaled}
    )
    names = [f"worker-{i}" for i in range(hosts)]
    return Log(Case(name="x", shape="", hosts=Hosts(names=names, gpus=gpus), programs=[program]))


@BOUNDED
@given(
    name=st.sampled_from(["all_reduce", "reduce_scatter"]),
    layout=st.sampled_from(LAYOUTS),
    hosts=st.integers(1, 40),
    gpus=st.sampled_from([2, 4, 8]),
)
def test_reduce_scatter_and_all_reduce_are_told_apart_by_their_counts(
    name: str, layout: str, hosts: int, gpus: int
) -> None:
    (run,) = read_lines(unnamed(name, layout, hosts, gpus).lines).runs
    found = infer(run)
    assert found.name == name
    assert found.certain


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_where_the_counts_contradict_each_other_the_bandwidths_tell(name: str) -> None:
    (run,) = read_lines(unnamed(name, "2.13", 2, 8).lines).runs
    run.rows[0] = replace(run.rows[0], count=run.rows[0].count - 1)
    assert infer(run).name == name


@pytest.mark.parametrize(
    ("busbw", "name", "certain"),
    # two ranks of each group; a count that is the whole message
    [("100.00", "all_reduce", True), ("50.00", "reduce_scatter", False)],
)
def test_the_ranks_of_a_group_and_the_count_tell_whether_a_collective_is_certain(
    busbw: str, name: str, certain: bool
) -> None:
    run = table([row(512 * MIB, measurement(algbw="100.00", busbw=busbw))], ranks=4)
    run.preamble.name = None
    run.preamble.ranks = [replace(rank, group=rank.rank // 2) for rank in run.preamble.ranks]
    assert (infer(run).name, infer(run).certain) == (name, certain)


@BOUNDED
@given(
    name=st.sampled_from(["all_gather", "reduce_scatter"]),
    hosts=st.integers(1, 20),
    gpus=st.sampled_from([2, 4, 8]),
)
def test_algbw_that_is_scaled_already_is_no_damage(name: str, hosts: int, gpus: int) -> None:
    verdict = judge(unnamed(name, "2.0", hosts, gpus, scaled=True).lines, Expectation())
    assert list(verdict.collectives) == [name]
    status = {gate: verdict.check(gate).status for gate in ("collective", "ranks", "completeness")}
    assert set(status.values()) == {"pass"}, verdict.reasons


def test_algbw_of_hypercube_is_scaled_as_its_program_prints_it() -> None:
    rows = unnamed("all_gather", "2.17.8", 2, 8, scaled=True).lines
    log = ["# Collective test starting: hypercube_perf", *(line.replace(" none ", "      ") for line in rows)]
    verdict = judge(log, Expectation(collectives=["hypercube"]))
    assert {verdict.check(gate).status for gate in ("collective", "ranks", "completeness")} == {"pass"}


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_no_nccl_tests_with_the_column_of_wrong_values_scales_algbw(name: str) -> None:
    lines = [line.replace("error", "#wrong") for line in unnamed(name, "2.0", 2, 8, scaled=True).lines]
    assert judge(lines, Expectation()).check("completeness").status == "fail"


@BOUNDED
@given(first=st.integers(0, 200), last=st.integers(0, 200))
def test_an_excerpt_is_not_said_to_miss_a_rail(first: int, last: int) -> None:
    log = Made().lines()
    banner = next(i for i, x in enumerate(log) if "nThread" in x)
    average = next(i for i, x in enumerate(log) if x.startswith("# Avg"))
    part = log[first % len(log) :][: last % len(log) + 1]
    verdict = judge(part, WANT)
    if log[banner] not in part or log[average] not in part:
        assert verdict.check("rails").status != "fail"
        assert "rail-missing" not in [d.name for d in verdict.diagnoses]


def test_the_model_of_the_gpu_is_that_of_the_device_list() -> None:
    made = Made(hosts=["worker-0"], peak=400.0)
    verdict = judge(made.lines(), Expectation())
    assert verdict.expected_gbps == 481.0 and verdict.expectation["gpu"] == "H100"
    made.gpu = "NVIDIA H100 PCIe"
    assert judge(made.lines(), Expectation()).check("busbw").code == "busbw.no_expectation"


@pytest.mark.parametrize("cut", ["# nThread", "# Avg bus bandwidth"])
def test_fewer_hcas_in_an_excerpt_are_unknown(cut: str) -> None:
    few = [line.replace("[7]mlx5_7:1/IB", "").rstrip() for line in Made().lines()]
    assert judge(few, WANT).check("hcas").code == "hcas.too_few"
    excerpt = judge([line for line in few if not line.startswith(cut)], WANT)
    assert excerpt.check("hcas").status == "unknown"


def test_a_call_that_nccl_tries_and_does_without_fails_no_log() -> None:
    line = "w-1:43:90 [3] NCCL INFO Call to ibv_set_ece failed with error Operation not supported errno 95"
    assert judge(Made().lines_with(line, "before"), WANT).passed
