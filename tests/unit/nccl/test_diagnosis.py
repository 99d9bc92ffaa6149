"""Each known failure line is recognised by its own example."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.nccl.diagnose.diagnosis import Findings, Shape, shapes
from busbar.nccl.diagnose.signs import signs


@pytest.mark.parametrize("shape", shapes(), ids=lambda s: s.name)
def test_a_shape_is_found_in_its_example(shape: Shape) -> None:
    findings = Findings()
    findings.look(shape.example, 1)
    assert shape.name in findings.first


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
