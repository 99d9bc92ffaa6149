"""A log in the records of a collector is read as the log itself, or not at all; it is never damage."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import judge
from busbar.judge.nccl.log.clean import clean
from busbar.judge.nccl.log.records import Preamble, Run
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.tables import row

BOUNDED = settings(max_examples=15)
STAMP = "2026-05-05T10:00:00.123456789Z"
HEALTHY = Made().lines()


def as_csv(*fields: str) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(fields)
    return out.getvalue().rstrip("\r\n")


Wrap = Callable[[str], str]
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
        (next(line for line in HEALTHY if line.lstrip()[:1].isdigit()), "completeness.repeated_rows"),
        ("    4096    1024    float     sum      -1    1.00    4.10    7.68      0", "completeness.damaged"),
        # quoted by a text behind the table
        (next(line for line in HEALTHY if line.startswith("# Avg")), "completeness.complete"),
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
    return [line for line in made.lines() if line.lstrip()[:1].isdigit()]


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
    at = next(i for i, x in enumerate(log) if x.startswith("# Avg"))
    values = [float(v) for x in log if x.lstrip()[:1].isdigit() for v in (x.split()[7], x.split()[11])]
    log[at] = f"# Avg bus bandwidth    : {sum(values) / len(values):g} "
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
