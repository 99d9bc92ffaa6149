"""Logs made from made/cases: each is read as it was printed and judged as its case says."""

import hashlib
from typing import Any

import pytest

from busbar.judge.nccl import Expectation, Verdict, judge, judge_log
from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.log.known import Failure, failures
from tests.diagnosis_page import LINES
from tests.support import shared
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import Judged, cases
from tests.unit.judge.nccl.reading import as_object, differences, parsed

JUDGED = [(name, i) for name, case in cases().items() for i in range(len(case.judged))]
# A gate that no case names yet need not be stated in every log that lacks its evidence: the verdict is.
NAMED = {gate for case in cases().values() for judged in case.judged for gate in judged.unknown}


@pytest.mark.parametrize("name", cases())
def test_a_made_log_is_read_as_it_was_printed(name: str) -> None:
    log = Log(cases()[name])
    data = log.text.encode()
    whole = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "truncated": None}
    assert differences(log.expected() | whole, as_object(parsed(name))) == []


@pytest.mark.parametrize(("name", "number"), JUDGED)
def test_a_made_log_is_judged_as_its_case_says(name: str, number: int) -> None:
    case = cases()[name]
    log, want = Log(case), case.judged[number]
    verdict = judge_log(parsed(name), Expectation(**want.want))
    assert outcome(verdict) == stated(want)
    assert verdict.busbw_gbps == log.busbw


def outcome(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.verdict,
        "fail": sorted(c.name for c in verdict.checks if c.status == "fail"),
        "unknown": sorted(c.name for c in verdict.checks if c.status == "unknown" and c.name in NAMED),
        "diagnoses": sorted(d.name for d in verdict.diagnoses),
        "transport": verdict.transport,
        "ranks": verdict.ranks,
        "nodes": verdict.nodes,
    }


def stated(judged: Judged) -> dict[str, Any]:
    lists = {k: sorted(getattr(judged, k)) for k in ("fail", "unknown", "diagnoses")}
    return {**judged.model_dump(exclude={"want"}), **lists}


@pytest.mark.parametrize("name", cases())
def test_no_unusable_made_log_passes_any_profile(name: str) -> None:
    case = cases()[name]
    log = parsed(name)
    passed = [p for p in profiles.names() if judge_log(log, Expectation(profile=p, nodes=2)).passed]
    assert passed == [] or (case.usable and case.kind == "full")


def test_every_failure_that_a_whole_log_shows_is_shown_by_a_made_log() -> None:
    shown = {d for case in cases().values() for judged in case.judged for d in judged.diagnoses}
    assert {rule.name for rule in failures() if not rule.lines} - shown == set()


def test_every_known_failure_line_has_a_line_of_our_own() -> None:
    assert set(LINES) == {rule.name for rule in failures() if rule.lines}


@pytest.mark.parametrize("rule", [r for r in failures() if r.lines], ids=lambda r: r.name)
def test_a_failure_line_in_a_healthy_log_is_named_and_fails_the_log_if_fatal(rule: Failure) -> None:
    verdict = judge(Made().lines_with(LINES[rule.name], rule.stages[0]), WANT)
    assert [d.name for d in verdict.diagnoses] == [rule.name]
    other = "unknown" if rule.no_verdict else "pass"
    assert verdict.check("warnings").status == ("fail" if rule.severity == "fatal" else other)


@pytest.mark.shared
def test_every_header_of_a_made_log_is_one_that_nccl_tests_printed() -> None:
    real = {line.strip() for name in shared.log_names() for line in shared.log_lines(name)}
    made = {line.strip() for case in cases().values() for line in Log(case).lines if "algbw" in line}
    # no real log shows the old broadcast
    strange = [h for h in made if h.encode() not in real and " type    root " not in h]
    assert strange == []
