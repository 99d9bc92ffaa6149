"""docs/evidence.md is as the defaults and the recorded passes are."""

from __future__ import annotations

from tests.evidence_page import drills, generated
from tests.support.drills import PAGE, PROJECT, RECORD, passes


def test_the_page_is_as_defaults_and_passes_are() -> None:
    page = (PROJECT / PAGE).read_text()
    assert generated(page) == page, "Fix: make docs"


def test_every_recorded_pass_is_that_of_a_drill() -> None:
    for name in passes(PROJECT):
        file, _, test = name.partition("::")
        path = PROJECT / file
        known = drills(path) if path.exists() else {}
        assert test.partition("[")[0] in known, f"Fix: delete the line of {name} in {RECORD}, then make docs"
