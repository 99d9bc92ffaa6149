"""Each gate refuses what it is for, by its own name, and lack of evidence is never a pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from busbar.judge.nccl import Expectation, JobOutcome, Verdict, judge
from busbar.judge.nccl.log.known import failures
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases

ROOT = Path(__file__).parents[4]
CODE = re.compile(r'"([a-z-]+\.(?!json)[a-z_]+)"')


def judged(*info: str) -> Verdict:
    """The verdict on a healthy log in which NCCL also says INFO."""
    return judge(Made(info=list(info)).lines(), WANT)


def test_a_good_log_passes_every_required_gate() -> None:
    verdict = judged()
    assert verdict.verdict == "pass" and verdict.exit_code == 0
    assert {c.status for c in verdict.checks} == {"pass", "not-required"}
    assert verdict.busbw_gbps is not None and verdict.busbw_gbps > 389


def test_the_reference_system_passes_its_six_checks_by_name() -> None:
    log = Log(cases()["the reference system, every line tagged"])
    verdict = judge(log.lines, Expectation(profile="h100-crusoe", nodes=2))
    six = ("nccl-version", "plugin", "topology-file", "hcas", "gdrdma", "busbw")
    assert {name: verdict.check(name).status for name in six} == dict.fromkeys(six, "pass")
    assert verdict.passed and verdict.busbw_gbps == log.busbw
    assert verdict.plugin_path == "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"
    largest = next(i for i, line in enumerate(log.lines, 1) if "2147483648     536870912" in line)
    assert verdict.check("busbw").line == largest


def test_a_log_of_a_system_that_was_not_given_asks_for_it() -> None:
    for gate in ("rails", "busbw"):
        assert judge(Made().lines(), Expectation()).check(gate).fix.startswith("pass --profile")
        assert not judged().check(gate).fix


def test_several_collectives_in_one_log_are_judged_one_by_one() -> None:
    second = Made(name="all_gather")
    want = Expectation(profile="h100-ib-8x400", nodes=2, collectives=["all_reduce", "all_gather"])
    verdict = judge([*Made().lines(), *second.lines()], want)
    assert verdict.verdict == "pass", verdict.reasons
    assert list(verdict.collectives) == ["all_reduce", "all_gather"]
    second.peak = 100.0
    slow = judge([*Made().lines(), *second.lines()], want)
    assert slow.verdict == "fail" and slow.collectives["all_reduce"].passed
    assert judge(Made().lines(), want).check("collective").status == "fail"


def test_wrong_data_in_a_collective_that_was_not_asked_for_fail() -> None:
    want = Expectation(profile="h100-ib-8x400", nodes=2, collectives=["all_reduce"])
    verdict = judge([*Made().lines(), *Made(name="all_gather", wrong="3").lines()], want)
    assert (verdict.verdict, verdict.check("correctness").status) == ("fail", "fail")


def test_what_the_log_says_was_simulated_is_in_the_verdict() -> None:
    verdict = judge(["# simulated: CPU program in place of nccl-tests", *Made().lines()], WANT)
    assert verdict.simulated == "CPU program in place of nccl-tests"


def test_a_failed_bitwise_check_fails() -> None:
    log = Made().lines()
    at = next(i for i, line in enumerate(log) if line.startswith("# Avg"))
    log.insert(at, "# Bitwise mismatches   : 0 OK")
    assert judge(log, WANT).passed
    for printed in ("3 FAILED", "3", "0 FAILED"):
        log[at] = f"# Bitwise mismatches   : {printed}"
        assert judge(log, WANT).check("correctness").status == "fail"


def test_edges_behind_a_table_of_one_size_do_not_prove_it() -> None:
    made = Made()
    made.low = made.high
    log = made.lines()
    info = [line for line in log if "NCCL INFO Channel" in line]
    late = [*(line for line in log if line not in info), *info]
    status = {
        name: judge(lines, WANT).check("transport").status for name, lines in (("in", log), ("late", late))
    }
    assert (status["in"], status["late"] == "pass") == ("pass", False)


def test_a_summary_with_other_values_after_the_first_fails() -> None:
    log = Made().lines()
    at = next(i for i, line in enumerate(log) if line.startswith("# Out of bounds"))
    log.insert(at, "# Out of bounds values : 3 FAILED")
    assert not judge(log, WANT).passed
    assert judge(log, WANT).check("completeness").status == "fail"


def test_a_warning_whose_place_has_blanks_is_still_a_warning() -> None:
    line = (
        "[2026-01-01 12:08:32] worker-0:40:71 [0] int handle_error(context_t*, fid_cq*, uint16_t):46 "
        "NCCL WARN NET/OFI Request 0x7f completed with error. Error: Invalid receiver queue pair number"
    )
    check = judged(line).check("warnings")
    assert (check.status, "NET/OFI Request" in str(check.evidence)) == ("fail", True)


def test_a_gate_gives_every_code_that_is_read() -> None:
    own, fabric = ROOT / "busbar" / "judge" / "nccl", ROOT / "busbar" / "fabric"
    named = {code for failure in failures() for code in (*failure.codes, *failure.unless)}
    named |= _codes(own / "report") | _codes(fabric)
    assert named - _codes(own / "checks") - {"job.failed"} == set()


def _codes(folder: Path) -> set[str]:
    """The words in the sources of FOLDER that begin with the name of a gate."""
    gates = {check.name for check in judge(Made().lines(), WANT, JobOutcome(True)).checks}
    words = {word for path in folder.rglob("*.py") for word in CODE.findall(path.read_text())}
    return {word for word in words if word.partition(".")[0] in gates}


def test_every_gate_stands_in_the_docs() -> None:
    text = (ROOT / "docs" / "nccl.md").read_text()
    gates = [check.name for check in judge(Made().lines(), WANT, JobOutcome(True)).checks]
    assert [name for name in gates if f"`{name}`" not in text] == []


EDGE = "worker-0:40:90 [0] NCCL INFO Channel 09/0 : 0[0] -> 8[0] [send] via NET"


def test_both_of_two_messages_in_one_line_are_read() -> None:
    peer = EDGE.replace("[send]", "[receive]")
    verdict = judged(f"{EDGE}/IB/1{peer}/IB/1/GDRDMA")
    assert "1 of 34 edges" in verdict.check("gdrdma").reason
    error = "worker-1:40:99 [6] NCCL WARN NET/IB: Got completion from peer 10.0.0.5<1> with status=12"
    assert judged(f"{EDGE}/IB/1/GDRDMA{error}").check("warnings").code == "warnings.known_failure"


def test_a_damaged_message_inside_another_proves_nothing() -> None:
    inside = "worker-1:40:99 [6] NCC INFO Using network IB"
    verdict = judged(f"worker-0:40:90 [0] NCCL INFO comm 0x5 {inside}")
    assert verdict.check("transport").code == "transport.unread_message"


@pytest.mark.parametrize("transport", ["/IB/1/GDRDMA_OFF", "/IB/1/GDRDMA/x", "/IB", " IB 1"])
def test_an_edge_in_an_unknown_form_proves_nothing(transport: str) -> None:
    verdict = judged(f"{EDGE}{transport}", f"{EDGE}{transport}".replace("[send]", "[receive]"))
    assert verdict.check("transport").code == "transport.unread_edge" and not verdict.passed
