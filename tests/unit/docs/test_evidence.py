"""docs/evidence.md is as the defaults and the recorded passes are."""

from __future__ import annotations

from pathlib import Path

from tests.evidence_page import drills, generated, rows_of_drills
from tests.support.drills import PAGE, PROJECT, RECORD, passes

DRILLS = """
import pytest

pytestmark = [pytest.mark.drill, pytest.mark.usefixtures("lab")]

@pytest.mark.parametrize("host", ["a", "b"])
def test_one(host): ...

@pytest.mark.drill(needs="a real K3s")
def test_two(): ...

def test_three(): ...

def helper(): ...
"""
LINE = {"date": "2026-11-28", "commit": "0123abcd", "seconds": 1200}


def test_the_page_is_as_defaults_and_passes_are() -> None:
    page = (PROJECT / PAGE).read_text()
    assert generated(page) == page, "Fix: make docs"


def test_every_recorded_pass_is_that_of_a_drill() -> None:
    for name in passes(PROJECT):
        file, _, test = name.partition("::")
        path = PROJECT / file
        known = drills(path) if path.exists() else {}
        assert test.partition("[")[0] in known, f"Fix: delete the line of {name} in {RECORD}, then make docs"


def test_the_rows_count_passes_per_file_and_say_what_the_others_need(tmp_path: Path) -> None:
    for file in ("tests/lab/test_a.py", "tests/lab/test_b.py", "stacks/x/tests/lab/test_c.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(DRILLS)
    (tmp_path / "tests/lab/test_d.py").write_text("def test_quick(): ...")
    known = {
        "tests/lab/test_a.py::test_one[a]": {**LINE, "requests": 4000, "repeated": 3},
        "tests/lab/test_a.py::test_one[b]": {**LINE, "date": "2026-11-29", "requests": 500, "repeated": 0},
        "tests/lab/test_b.py::test_two": {**LINE, "k3s": "v1.34.3+k3s1"},
    }
    assert list(rows_of_drills(tmp_path, known)) == [
        "| `tests/lab/test_a.py` | 1 of 3 | 2026-11-28 to 2026-11-29 |  | 2,400 s | 3 of 4,500 "
        "| 1 not run here: needs a real K3s |",
        "| `tests/lab/test_b.py` | 1 of 3 | 2026-11-28 | v1.34.3+k3s1 | 1,200 s |  |  |",
        "| `stacks/x/tests/lab`, files without a pass | 0 of 3 |  |  |  |  "
        "| 1 not run here: needs a real K3s |",
    ]


def test_a_file_whose_tests_are_marked_one_by_one_has_these_drills(tmp_path: Path) -> None:
    path = tmp_path / "test_a.py"
    path.write_text(DRILLS.replace("pytestmark =", "others ="))
    assert drills(path) == {"test_two": "a real K3s"}
