"""What NCCL prints as INFO when something failed is judged by its table, and by its place in the log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Expectation, Verdict, judge
from busbar.judge.nccl.expected.profiles import read_yaml
from busbar.judge.nccl.log.known import VALUE, failures
from busbar.judge.nccl.log.known import Failure as Rule
from busbar.judge.nccl.log.known import failure as rule
from busbar.judge.nccl.log.records import Stage
from tests.diagnosis_page import LINES
from tests.unit.judge.nccl.logs import Made

WANT = Expectation(profile="h100-ib-8x400", nodes=2)
BOUNDED = settings(max_examples=25)
PROCESS = "worker-1:43:90 [3] NCCL INFO "
STAGES: tuple[Stage, ...] = ("before", "table", "after")
VALUES = st.sampled_from(["7", "10.0.0.2<45231>", "0x7f2e5c001000", "send", "mlx5_3"])
TEXTS = [
    (each["name"], text)
    for each in read_yaml("busbar.judge.nccl.log", "failures.yaml")
    if isinstance(each.get("contains"), dict) and "matches" not in each
    for texts in each["contains"].values()
    for text in texts
]


def with_line(line: str, stage: Stage) -> Verdict:
    """The healthy log with LINE at STAGE."""
    return judge(Made().lines_with(line, stage), WANT)


@BOUNDED
@given(st.sampled_from(TEXTS), VALUES, st.sampled_from(["", "ncclFunction: "]), st.data())
def test_every_listed_text_shows_its_rule_whatever_its_values_are(
    row: tuple[str, str], value: str, before: str, data: st.DataObject
) -> None:
    found = rule(row[0])
    stage = data.draw(st.sampled_from(found.stages))
    verdict = with_line(PROCESS + before + VALUE.sub(lambda _: value, row[1]), stage)
    doubted = found.no_verdict or stage == "table"
    expected = "fail" if found.severity == "fatal" else "unknown" if doubted else "pass"
    assert verdict.verdict == expected
    assert row[0] in [d.name for d in verdict.diagnoses]


@BOUNDED
@given(st.sampled_from([r for r in failures() if r.stages != STAGES]))
def test_a_text_that_counts_at_some_stages_changes_nothing_at_the_others(each: Rule) -> None:
    for stage in set(STAGES) - set(each.stages):
        assert with_line(LINES[each.name], stage).reasons == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_text_that_no_rule_knows_changes_nothing(stage: Stage) -> None:
    verdict = with_line(f"{PROCESS}NET/New : Failed to do 7", stage)
    assert verdict.passed and verdict.remarks == []


def test_the_probes_of_a_second_program_are_not_behind_a_table() -> None:
    made = Made()
    made.info = [PROCESS + "misc/cudawrap.cc:95 -> 3", PROCESS + "NET/New : Failed to do 7"]
    assert judge([*Made().lines(), *made.lines()], WANT).check("warnings").status == "pass"


@pytest.mark.parametrize(
    ("state", "mask", "verdict"),
    [
        (3, "0", "pass"), (3, "1aa", "pass"), (3, "2aa", "fail"), (3, "1a9", "fail"), (3, "1a6", "fail"),
        (3, "19a", "fail"), (3, "16a", "fail"), (1, "0", "fail"), (2, "1aa", "fail"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_not_sound_in_the_nvlink_fabric_fails(state: int, mask: str, verdict: str) -> None:
    line = f"{PROCESS}MNNVL busId 0x1 fabric UUID 0.0 cliqueId 0x0 state {state} healthMask 0x{mask}"
    assert with_line(line, "before").verdict == verdict
