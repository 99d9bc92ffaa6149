"""Each failure shape is recognised by its own example, and by the real log that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.nccl import Expectation, judge
from busbar.nccl.diagnose.diagnosis import Findings, Shape, shapes
from busbar.nccl.diagnose.signs import signs
from tests.unit.nccl import logs

REAL = {
    "011": "hang",
    "013": "half-rate",
    "014": "no-transport-evidence",
    "027": "socket-fallback",
    "032": "not-compared",
    "051": "memory-registration",
    "062": "more-ranks-than-gpus",
    "066": "sharp-denied",
    "067": "wrong-values",
    "068": "mpi-not-effective",
    "069": "ib-retry-exceeded",
    "070": "ib-retry-exceeded",
    "071": "shm-too-small",
    "072": "ib-protection-error",
    "073": "memlock",
    "074": "memlock",
    "075": "no-gpudirect",
    "076": "mpi-not-effective",
    "077": "efa-peer-gone",
    "085": "mpi-not-effective",
}


@pytest.mark.parametrize("shape", shapes(), ids=lambda s: s.name)
def test_a_shape_is_found_in_its_example(shape: Shape) -> None:
    findings = Findings()
    findings.look(shape.example, 1)
    assert shape.name in findings.first


@pytest.mark.parametrize("prefix", REAL)
def test_a_real_failure_is_named(prefix: str) -> None:
    verdict = judge(logs.lines(prefix), Expectation(profile="h100-ib-8x400", nodes=2))
    assert REAL[prefix] in [d.name for d in verdict.diagnoses]
    assert not verdict.passed


def test_the_good_logs_show_no_fatal_shape() -> None:
    for prefix in ("001", "004", "006", "008", "009", "013", "030", "084", "086", "087"):
        verdict = judge(logs.lines(prefix), Expectation())
        assert [d.name for d in verdict.diagnoses if d.severity == "fatal"] == [], prefix


def test_the_table_in_the_docs_names_every_diagnosis() -> None:
    text = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text()
    missing = [n for n in [*(s.name for s in shapes()), *signs()] if f"`{n}`" not in text]
    assert missing == []


def test_every_line_with_a_known_shape_counts_whatever_stood_before_it() -> None:
    findings = Findings()
    for shape in shapes():
        for line, text in (
            (1, "rank 12 of 40 waits"),
            (2, shape.example),
            (3, "rank 13 of 40"),
            (4, shape.example),
        ):
            findings.look(text, line)
        assert findings.count[shape.name] >= 2 and findings.first[shape.name][0] == 2
        findings = Findings()
