"""What `busbar nccl check` prints without --full: a few lines that hold the first cause."""

from __future__ import annotations

import io

import pytest

from busbar.judge.nccl import Expectation, judge
from busbar.judge.nccl.report.terminal import MAX_LINES, summary, verdict_text
from busbar.judge.nccl.units import exact, gbps, rate, share, short, size
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.made.spec import cases
from tests.unit.judge.nccl.reading import verdict_of


def labelled(lines: list[str]) -> dict[str, str]:
    """Label -> its text, lines joined."""
    found: dict[str, str] = {}
    label = ""
    for line in lines[1:]:
        if line[:1] != " ":
            label, _, line = line.partition(" ") if not line.startswith("line ") else ("line", "", line)
        found[label] = f"{found.get(label, '')} {line.strip()}".strip()
    return found


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_log_needs_more_lines_than_a_screen_has(width: int) -> None:
    for name in cases():
        verdict = verdict_of(name)
        lines = summary(verdict, width)
        assert len(lines) <= MAX_LINES[verdict.verdict], name
        assert all(len(line) <= width for line in lines), name


def test_only_what_did_not_pass_has_a_cause() -> None:
    for name in cases():
        verdict = verdict_of(name)
        said = labelled(summary(verdict, 200))
        assert ("cause" in said) is not verdict.passed, name
        if not verdict.passed:
            gate = next(c for s in ("fail", "unknown") for c in verdict.checks if c.status == s)
            assert said["cause"].partition(":")[0] in {gate.name, *(d.name for d in verdict.diagnoses)}, name


def test_a_pass_shows_the_bandwidth_and_the_proof() -> None:
    verdict = judge(Made().lines(), WANT)
    lines = summary(verdict, 200)
    assert lines[0].startswith("PASS   all_reduce 390 GB/s at 8 GiB, 97.5 % of the expected 400 GB/s")
    assert verdict.check("gdrdma").reason in labelled(lines)["proof"]
    assert verdict.check("rails").reason in labelled(lines)["proof"]


A100 = Expectation(gpu="A100", nodes=2, gpus_per_node=8, rails=4, rate_gbps=100.0)


@pytest.mark.parametrize(
    ("want", "basis"),
    [
        (A100, "one published run"),
        (A100.model_copy(update={"rails": 2, "rate_gbps": 50.0}), "no such system is published"),
        (WANT.model_copy(update={"expected_busbw_gbps": 380.0}), "configured"),
    ],
)
def test_an_expected_value_with_little_behind_it_or_from_a_person_says_so(
    want: Expectation, basis: str
) -> None:
    assert basis in summary(judge(Made().lines(), want), 400)[0]


def test_a_failure_names_its_first_cause_with_the_line_and_the_next_command() -> None:
    verdict = judge(Made(gdr=False).lines(), WANT)
    said = labelled(summary(verdict, 200))
    assert said["cause"].startswith("no-gpudirect: ")
    assert said["gate"].startswith("gdrdma: ")
    line = verdict.check("gdrdma").line
    assert said["line"].startswith(f"line {line} ") and "via NET/IB" in said["line"]
    assert "nvidia_peermem" in said["next"]


def test_missing_evidence_is_no_verdict_and_names_the_gate() -> None:
    verdict = judge([line for line in Made().lines() if "NCCL" not in line], WANT)
    lines = summary(verdict, 200)
    assert lines[0].startswith("NO VERDICT all_reduce")
    assert "not proved" in labelled(lines)["also"]


def test_full_shows_every_gate() -> None:
    verdict = judge(Made().lines(), WANT)
    full = verdict_text(verdict, io.StringIO(), full=True)
    assert all(check.name in full for check in verdict.checks)


def test_full_shows_the_rows_of_the_largest_messages() -> None:
    text = verdict_text(judge(Made(low=2**20).lines(), WANT), io.StringIO(), full=True)
    rows = [line.split()[:2] for line in text.splitlines() if line.split()[1:2] in (["MiB"], ["GiB"])]
    assert [" ".join(row) for row in rows] == [size(2**n) for n in range(26, 34)]


@pytest.mark.parametrize(
    ("value", "column", "sentence", "beside_a_line"),
    [
        (390.28, "390.28", "390.28 GB/s", "390"),
        (400.0, "400.00", "400 GB/s", "400"),
        (46.9, "46.90", "46.9 GB/s", "46.9"),
        (0.7, "0.70", "0.7 GB/s", "0.7"),
        (0.02, "0.02", "0.02 GB/s", "0.02"),
        (0.018, "0.018", "0.018 GB/s", "0.018"),
        (0.00123456, "0.00123", "0.00123 GB/s", "0.00123"),
        (0.0, "0.00", "0 GB/s", "0"),
    ],
)
def test_a_bandwidth_reads_right_at_any_height(
    value: float, column: str, sentence: str, beside_a_line: str
) -> None:
    assert (rate(value), gbps(value), short(value)) == (column, sentence, beside_a_line)


def test_a_fraction_far_above_one_is_a_multiple() -> None:
    assert (share(0.9757), share(1.175), share(35.0), share(None)) == ("97.6 %", "117.5 %", "35x", "-")


def test_sizes_that_differ_never_read_the_same() -> None:
    assert exact(2**29) == "512 MiB" and exact(2**29 + 4) == "536870916 B" and exact(0) == "0 B"
