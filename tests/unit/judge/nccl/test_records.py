"""What launchers and collectors put around lines changes nothing, or the log is not read; it is no damage."""

import csv
import io
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import judge, read_lines
from busbar.judge.nccl.log.clean import clean
from busbar.judge.nccl.log.patterns import TYPES, row_start
from busbar.judge.nccl.log.records import Preamble, Run
from tests.unit.judge.nccl.logs import FIRST_ROW, HEALTHY, WANT, Made, index, is_row
from tests.unit.judge.nccl.tables import row

BOUNDED = settings(max_examples=15)
STAMP = "2026-05-05T10:00:00.123456789Z"


def as_csv(*fields: str) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(fields)
    return out.getvalue().rstrip("\r\n")


Wrap = Callable[[str], str]
CTIME = "Mon Sep  2 10:00:00 2024"

WRAPPERS: dict[str, Wrap] = {
    "nothing": lambda t: t,
    "Open MPI 4 --tag-output": lambda t: f"[1,0]<stdout>:{t}",
    "Open MPI 4 stddiag": lambda t: f"[1,12]<stddiag>:{t}",
    "Open MPI 4 --timestamp-output": lambda t: f"{CTIME}[1,0]<stdout>:{t}",
    "Open MPI 4 --timestamp-output alone": lambda t: f"{CTIME}<stdout>:{t}",
    "mpiexec.hydra -prepend-rank": lambda t: f"[12] {t}",
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


KNOWN: dict[str, Wrap] = {
    "Google Cloud": lambda x: json.dumps(
        {"insertId": "1", "jsonPayload": {"message": x}, "severity": "INFO"}
    ),
    "logcli": lambda x: json.dumps({"labels": {"pod": "log"}, "line": x, "timestamp": STAMP}),
    "Elasticsearch": lambda x: json.dumps({"_index": "a", "_source": {"message": x, "log": {"offset": 3}}}),
    "docker behind a prefix": lambda x: f"worker-0: {json.dumps({'log': x + chr(10), 'stream': 'stdout'})}",
    "docker behind a time": lambda x: f"{STAMP} {json.dumps({'log': x, 'time': STAMP})}",
    "docker inside fluent-bit": lambda x: json.dumps({"log": json.dumps({"log": x, "stream": "stdout"})}),
    "CloudWatch": lambda x: json.dumps({"events": [{"timestamp": 1, "message": x}]}),
    "Splunk": lambda x: json.dumps({"preview": False, "result": {"_raw": x, "host": "a"}}),
    "blanks in JSON": lambda x: f'{{ "level": "info", "msg": {json.dumps(x)} }}',
    "logfmt": lambda x: f"time={STAMP} level=info msg={json.dumps(x)} pod=nccl-0",
    "logfmt, line first": lambda x: f"line={json.dumps(x)} ts={STAMP}",
    "Ansible": lambda x: f"        {json.dumps(x)},",
    "Ansible, last": lambda x: f"        {json.dumps(x)}",
    "YAML": lambda x: f"    - '{x}'",
    "YAML, plain": lambda x: f"  - {x}",
    "pretty JSON": lambda x: f'    "textPayload": {json.dumps(x)},',
    "tags inside JSON": lambda x: json.dumps({"log": f"[1,0]<stdout>:{x}"}),
    "k9s": lambda x: f"nccl [1,0]<stdout>:{x}",
    "stern over tagged output": lambda x: f"nccl-launcher-x7k [1,0][worker-0:57]<stdout>: {x}",
}
CSV: dict[str, Wrap] = {
    "quoted where needed": lambda x: as_csv(STAMP, "nccl-0", x),
    "all quoted": lambda x: f'"2026-05-05 10:00:00","nccl-0","{x}"',
    "more behind": lambda x: f'1714900000,nccl-0,"{x}",stdout',
    "a column for each value": lambda x: ";".join(x.split()) if is_row(x) else "",
}
UNKNOWN: dict[str, Wrap] = {
    "XML": lambda x: f"<event><message>{x}</message></event>",
    "a dictionary of Python": lambda x: f"{{'log': '{x}'}}",
    "JSON cut short": lambda x: json.dumps({"log": x, "pod": "nccl-0"})[:-3],
    "JSON with another key": lambda x: json.dumps({"pod": "a", "blob": x}),
    "escaped line ends": lambda x: f"{x}\\n\\t",
    "fields behind a bar": lambda x: f"{x} | stdout",
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_bad_log_in_known_records_stays_bad(name: str) -> None:
    made = Made(gdr=False)
    verdict = judge([KNOWN[name](line) for line in made.lines()], WANT)
    assert (verdict.verdict, verdict.check("gdrdma").code) == ("fail", "gdrdma.missing")


def test_braces_and_quotes_of_the_program_stay() -> None:
    line = '# {"log": "text"}'
    assert clean(line) == [line]


@pytest.mark.parametrize("wrap", CSV.values(), ids=CSV)
def test_csv_is_named_and_gives_no_verdict(wrap: Wrap) -> None:
    verdict = judge(map(wrap, HEALTHY), WANT)
    assert verdict.verdict == "unknown"
    assert verdict.check("source").reason == "the log is CSV, which is not read"


def test_a_call_of_a_trace_that_another_message_interrupts_is_no_csv() -> None:
    call = "gdr116:67599:67599 NCCL CALL ncclAllGather(7fbb5e000000,0,7,0x5f9d550eb"
    line = f"{call}gdr116:67600:67600 [1] NCCL INFO AllGather: opCount 5"
    assert "CSV" not in judge([*HEALTHY, line], WANT).check("source").reason


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_log_in_unknown_records_is_unknown_and_not_damaged(name: str) -> None:
    verdict = judge([UNKNOWN[name](line) for line in HEALTHY], WANT)
    assert verdict.verdict == "unknown", verdict.reasons


@pytest.mark.parametrize("name", [name for name in UNKNOWN if name.startswith("JSON")])
def test_one_line_that_cannot_be_read_is_enough_to_doubt_a_log(name: str) -> None:
    line = UNKNOWN[name]("worker-0:40:90 [0] NCCL WARN what it says is not known")
    check = judge([*HEALTHY[:-3], line, *HEALTHY[-3:]], WANT).check("source")
    assert (check.status, check.code) == ("unknown", "source.long_lines")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("# Avg bus bandwidth    : 1.5", "completeness.after_summary"),
        ("# Out of bounds values : 7 FAILED", "completeness.after_summary"),
        (HEALTHY[FIRST_ROW], "completeness.repeated_rows"),
        ("    4096    1024    float     sum      -1    1.00    4.10    7.68      0", "completeness.damaged"),
        # quoted by a text behind the table
        (HEALTHY[index(HEALTHY, "# Avg")], "completeness.complete"),
    ],
)
def test_what_follows_a_table_and_is_not_of_it_fails_the_table(line: str, code: str) -> None:
    assert judge([*HEALTHY, line], WANT).check("completeness").code == code


@BOUNDED
@given(st.from_regex(r"[a-z]{1,3}|[a-z][a-z0-9]{0,3}-|rack[0-9]-", fullmatch=True))
def test_a_host_whose_name_ends_like_a_known_one_is_another_host(before: str) -> None:
    row = "node-7 "
    log = [f"{row}{before}{line}" if "via NET" in line and "worker-0" in line else line for line in HEALTHY]
    assert not judge(log, WANT).passed


def rows(seed: int) -> list[str]:
    made = Made()
    made.peak += seed
    return [line for line in made.lines() if is_row(line)]


@BOUNDED
@given(st.integers(2, 5), st.booleans())
def test_rows_of_several_runs_are_not_said_to_be_of_processes_that_ran_alone(runs: int, named: bool) -> None:
    log = [f"run{i}.log:{row}" if named else row for i in range(runs) for row in rows(i)]
    verdict = judge(log, WANT)
    assert verdict.verdict == "unknown", verdict.reasons
    assert "mpi-not-effective" not in [d.name for d in verdict.diagnoses]


@pytest.mark.parametrize(
    ("sizes", "picked"), [((8, 16, 8, 16), True), ((8, 8), True), ((8, 8, 16), False), ((8, 16, 16), False)]
)
def test_rows_are_picked_one_run_after_the_other_or_one_of_each(sizes: list[int], picked: bool) -> None:
    assert Run(Preamble(), 1, rows=[row(size) for size in sizes]).is_picked is picked


@BOUNDED
@given(st.floats(0.02, 9e5))
def test_an_average_in_six_digits_is_that_of_the_rows(peak: float) -> None:
    log = Made(peak=peak).lines()
    values = [float(v) for x in log if is_row(x) for v in (x.split()[7], x.split()[11])]
    log[index(log, "# Avg")] = f"# Avg bus bandwidth    : {sum(values) / len(values):g} "
    assert judge(log, WANT).check("completeness").code != "completeness.average"


@BOUNDED
@given(st.integers(0, 10**6), st.sampled_from(["# nThread", "# Avg"]))
def test_a_device_list_with_gaps_in_an_excerpt_is_unknown(which: int, without: str) -> None:
    listed = [i for i, x in enumerate(HEALTHY) if x.startswith("#  Rank")]
    gone = listed[which % len(listed)]
    excerpt = [x for i, x in enumerate(HEALTHY) if i != gone and not x.startswith(without)]
    check = judge(excerpt, WANT).check("ranks")
    assert (check.status, check.code) == ("unknown", "ranks.excerpt")


def test_an_error_that_points_to_the_earliest_warning_shows_it() -> None:
    warning = "worker-1:41:90 [1] misc/socket.cc:9 NCCL WARN something new"
    error = "worker-0: Test NCCL failure common.cu:1012 'unhandled system error / '"
    found = judge([*HEALTHY[:20], warning, error], WANT).diagnoses
    assert next(d for d in found if d.name == "test-failure").cause.endswith(f"(line 21: {warning})")


# ---- what is inside of lines
@pytest.mark.parametrize("around", [*WRAPPERS.values(), *KNOWN.values()], ids=[*WRAPPERS, *KNOWN])
def test_a_good_log_passes_whatever_is_around_its_lines(around: Wrap) -> None:
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
    at = index(log, "1073741824")
    log.insert(at, log[at][:54])
    (run,) = read_lines(log).runs
    assert (run.damaged, len(run.rows)) == (1, 5)
    assert judge(log, WANT).check("completeness").status == "unknown"


@pytest.mark.parametrize("cut", [False, True])
def test_a_row_with_statistics_is_put_together_again_also_without_its_header(cut: bool) -> None:
    log = Made().lines()
    at = index(log, "1073741824")
    header = next(i for i, line in enumerate(log) if "#wrong" in line)
    log[header] = log[header].replace("#wrong", "#wrong i_min i_max i_p99 i_cv%")
    for i, line in enumerate(log):
        if is_row(line):
            tokens = line.split()
            log[i] = " ".join([*tokens[:9], "10.1 12.2 11.3 0.5", *tokens[9:], "10.1 12.2 11.3 0.5"])
    head, values = " ".join(log[at].split()[:5]), " ".join(log[at].split()[5:])
    log[at : at + 1] = [head, "worker-0:40:90 [0] NCCL INFO comm 0x1 rank 0", values]
    if cut:
        kept = ("Rank", "values", "Avg")
        log = [x for x in log if not x.startswith("#") or any(word in x for word in kept)]
    (run,) = read_lines(log).runs
    assert (len(run.rows), run.damaged, run.orphans) == (5, 0, 0)


def test_a_row_of_one_half_before_the_numbers_of_two_is_damage() -> None:
    log = Made().lines()
    at = index(log, "1073741824")
    words = log[at].split()
    log[at : at + 1] = [" ".join(words[:9]), " ".join(words[5:])]
    assert judge(log, WANT).check("completeness").code == "completeness.damaged"


@pytest.mark.parametrize("word", ["nThread", "#wrong"])
def test_arguments_or_headers_that_stand_twice_before_a_table_are_of_two_programs(word: str) -> None:
    log = [line for each in HEALTHY for line in ([each] * 2 if word in each else [each])]
    assert judge(log, WANT).check("ranks").code == "ranks.mixed"


def test_a_row_behind_the_summary_is_counted() -> None:
    log = Made().lines()
    rows = [line for line in log if is_row(line)]
    (run,) = read_lines([*log, rows[-1]]).runs
    assert run.rows_after_summary == 1


def test_a_device_list_and_rows_alone_are_a_table_of_their_own() -> None:
    second = [x for x in Made().lines() if x.startswith("#  Rank") or is_row(x)]
    runs = read_lines([*Made().lines(), *second]).runs
    assert [(len(run.preamble.ranks), len(run.rows)) for run in runs] == [(16, 5), (16, 5)]


def test_a_header_that_is_cut_off_is_no_error() -> None:
    log = [line.partition("#wrong")[0] if "#wrong" in line else line for line in Made().lines()]
    assert [len(run.rows) for run in read_lines(log).runs] == [5]


def test_numbers_without_their_row_are_damage() -> None:
    log = Made().lines()
    log.insert(-6, "    579.3    0.00    0.00      0    137.0    0.00    0.00      0")
    assert judge(log, WANT).check("completeness").status == "unknown"


def test_a_summary_that_sticks_to_a_message_is_still_read() -> None:
    log = Made().lines()
    at = index(log, "# Out of bounds")
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
        if not is_row(line):
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
