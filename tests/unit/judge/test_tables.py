"""What a terminal shows of verdicts, and which verdict.json belongs to the outputs."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from busbar.judge.tables import check_table, kept_verdict, not_passed, notes


def shown(what: Any) -> list[str]:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(what)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_fail_has_its_reasons_below_it() -> None:
    assert shown(not_passed("run failed", ["a", "b"])) == ["FAIL  run failed", "      a", "      b"]
    assert shown(not_passed("run failed", None)) == ["FAIL  run failed"]


def test_notes_end_their_names_in_one_column() -> None:
    assert [note.plain for note in notes([("API", "x"), ("versions", "y")])] == [
        "         API  x",
        "    versions  y",
    ]


def test_checks_that_were_not_required_share_a_row() -> None:
    checks = [{"name": "job", "status": "pass", "reason": "it did"}]
    checks += [{"name": name, "status": "not-required"} for name in ("sharp", "mnnvl")]
    assert shown(check_table({"h100": {"checks": checks}, "other": None}))[1:] == [
        "h100  job             pass    it did",
        "h100  (not required)          sharp, mnnvl",
    ]


def kept(folder: Path, text: str | None, *, same: bool = True) -> Any:
    file = folder / "h100" / "verdict.json"
    file.parent.mkdir(exist_ok=True)
    if text is not None:
        file.write_text(text)
    found = kept_verdict("h100", folder, None, lambda verdict: verdict["passed"] is not None and same)
    assert found == kept_verdict("h100", None, file, lambda verdict: verdict["passed"] is not None and same)
    return found


def test_a_verdict_is_shown_where_it_is_that_of_the_outputs(tmp_path: Path) -> None:
    verdict = {"passed": True}
    assert kept(tmp_path, json.dumps(verdict)) == verdict
    assert kept(tmp_path, json.dumps(verdict), same=False) is None


@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_verdict_that_is_gone_or_damaged_is_not_shown(tmp_path: Path, text: str | None) -> None:
    assert kept(tmp_path, text) is None


def test_something_that_is_no_verdict_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "h100").mkdir()
    (tmp_path / "h100" / "verdict.json").write_text("[]")
    assert kept_verdict("h100", tmp_path, None, lambda verdict: verdict.get("passed")) is None
