"""What people are shown of a verdict: the HTML report with its curves, and the few lines of a terminal."""

import html
import io
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar import __version__
from busbar.judge.nccl import Expectation, Verdict, judge
from busbar.judge.nccl.checks.context import FIX
from busbar.judge.nccl.report.html import Origin, render_html
from busbar.judge.nccl.report.svg import LEFT, RIGHT, Scale, curve_svg, spread, steps
from busbar.judge.nccl.report.terminal import MAX_LINES, first_cause, summary, verdict_text
from busbar.judge.nccl.units import exact, gbps, rate, share, short, size
from busbar.judge.nccl.verdict import CollectiveResult
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.made.spec import cases
from tests.unit.judge.nccl.reading import verdict_of

ORIGIN = Origin("launcher.log", 1_700_000_000.0, "busbar nccl check launcher.log")
LIMIT = re.compile(r'<polyline class="limit" points="([\d.]+),[\d.]+ ([\d.]+),[\d.]+"')


def made(*, low: int = 2**20, high: int = 2**33, peak: float = 390.0) -> Verdict:
    return judge(Made(low=low, high=high, peak=peak).lines(), WANT)


def text_of(page: str) -> str:
    """What a reader sees: no style, no tags, blanks made one."""
    plain = re.sub(r"<style>.*?</style>|<svg.*?</svg>|<title>.*?</title>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", plain)).split())


def headline(verdict: Verdict) -> CollectiveResult:
    return next(iter(verdict.collectives.values()))


# ---- the page ---------------------------------------------------------------------------------------------


def test_the_top_names_log_date_profile_hosts_and_versions() -> None:
    top = text_of(render_html(made(), ORIGIN).partition("<h2")[0])
    for expected in (
        "launcher.log, no date in it (the file is of 2023-11-14 22:13 UTC)",
        f"judged by busbar {__version__}: busbar nccl check launcher.log",
        "profile h100-ib-8x400",
        "hosts 2: worker-0, worker-1",
        "NVIDIA H100 80GB HBM3",
        "NCCL 2.28.7+cuda12.9, nccl-tests 2.17.6, network IB",
    ):
        assert expected in top


def test_a_log_from_standard_input_has_no_file_and_no_date(tmp_path: Path) -> None:
    assert Origin.of("-").text(None) == "standard input"
    (tmp_path / "x.log").touch()
    assert Origin.of(str(tmp_path / "x.log")).text(None).startswith("x.log, no date in it (the file is of 20")


@pytest.mark.parametrize(
    ("line", "date"),
    [
        ("2026-05-05T06:16:47.123456789Z # Using devices", "2026-05-05T06:16:47"),
        ("[2026-05-05 06:16:47] worker-0:40:90 [0] x.cc:1 NCCL WARN x", "2026-05-05 06:16:47"),
        ("Mon Sep 12 10:00:00 2024[1,0]<stdout>:# Using devices", "Mon Sep 12 10:00:00 2024"),
        ("benchmarks/20260305_220043 2026-13 12026-05-05 06:16:47", None),
    ],
)
def test_the_date_in_a_log_outweighs_that_of_its_file(line: str, date: str | None) -> None:
    verdict = judge([line, *Made().lines()], WANT)
    assert verdict.log_date == date
    text = (
        f"launcher.log, of {date}"
        if date
        else "launcher.log, no date in it (the file is of 2023-11-14 22:13 UTC)"
    )
    assert text in text_of(render_html(verdict, ORIGIN))


def test_rails_are_listed_by_device_with_their_hca() -> None:
    verdict = made()
    page = text_of(render_html(verdict, ORIGIN))
    assert list(verdict.hosts_per_rail.values()) == [2] * 8
    assert all(f" {device} mlx5_{device} 2 of 2" in page for device in range(8))
    # NCCL has merged others: which HCA a device is, is not known
    merged = verdict.model_copy(update={"hcas": verdict.hcas[:2], "hosts_per_rail": {"0": 2, "2": 1}})
    assert " 0 - 2 of 2 2 - 1 of 2" in text_of(render_html(merged, ORIGIN))


def test_no_advice_is_given_twice_and_the_first_card_is_the_first_cause_of_the_terminal() -> None:
    for name in cases():
        verdict = verdict_of(name)
        html = render_html(verdict, ORIGIN)
        page = text_of(html)
        advice = {d.next for d in verdict.diagnoses if d.severity != "note"}
        advice |= {r.partition(" Fix: ")[2] for r in verdict.reasons if " Fix: " in r}
        assert not {text: n for text in advice if (n := page.count(" ".join(text.split()))) > 1}, name
        assert "Fix:" not in page, name
        if known := first_cause(verdict)[1]:
            assert re.findall(r'<div class="diagnosis"><b class="\w+">(.*?)</b>', html)[0] == known.name


def test_what_a_known_failure_says_to_do_is_not_said_for_its_gates_too() -> None:
    verdict = judge([line for line in Made().lines() if "NCCL" not in line], WANT)
    assert verdict.check("transport").fix == FIX
    assert FIX not in text_of(render_html(verdict, ORIGIN))


# ---- the curve --------------------------------------------------------------------------------------------


def test_the_floor_is_drawn_from_the_size_on_where_it_applies() -> None:
    (line,) = LIMIT.findall(curve_svg("all_reduce", headline(made())))
    assert float(line[0]) == Scale(20.0, 33.0, LEFT, RIGHT).px(30.0)
    assert float(line[1]) == RIGHT


def test_a_floor_that_applies_to_no_size_of_the_log_is_not_drawn() -> None:
    assert not LIMIT.findall(curve_svg("all_reduce", headline(made(high=2**28, peak=100))))


def test_a_configured_floor_is_drawn_at_the_largest_message() -> None:
    verdict = judge(Made().lines(), Expectation(profile="h100-ib-8x400", nodes=2, expected_busbw_gbps=380))
    (line,) = LIMIT.findall(curve_svg("all_reduce", headline(verdict)))
    assert RIGHT - 40 <= float(line[0]) < float(line[1]) == RIGHT


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_ticks_are_round_and_few_and_fill_the_axis(top: float) -> None:
    ticks = steps(top)
    assert 3 <= len(ticks) <= 7 and ticks[0] == 0.0 and ticks[-1] <= top * 1.000001
    assert top - ticks[-1] < ticks[1]


@given(st.lists(st.floats(min_value=0, max_value=300), max_size=5))
def test_labels_of_lines_do_not_overlap_and_stay_above_the_axis(wanted: list[float]) -> None:
    placed = spread(sorted(wanted), 15.0, 280.0)
    assert all(b - a >= 14.999 for a, b in itertools.pairwise(placed))
    assert all(position <= 280.0 for position in placed)


# ---- the lines of `busbar nccl check` without --full
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
