"""The curve as PNG: the same picture as the SVG, with its text, on machines without fonts too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from busbar.cli import build
from busbar.judge.nccl import Expectation, Verdict, judge
from busbar.judge.nccl.report.frame import WIDE
from busbar.judge.nccl.report.png import SCALE, png
from tests.unit.judge.nccl.logs import Made


@pytest.fixture
def verdict() -> Verdict:
    return judge(Made().lines(), Expectation(profile="h100-ib-8x400", nodes=2))


def check(tmp_path: Path, lines: list[str]) -> tuple[int, str, Path]:
    log, picture = tmp_path / "a.log", tmp_path / "a.png"
    log.write_text("\n".join(lines))
    options = ["--profile", "h100-ib-8x400", "--expect-nodes", "2", "--png", str(picture)]
    done = CliRunner().invoke(build(), ["nccl", "check", str(log), *options])
    return done.exit_code, done.stderr, picture


def test_check_writes_a_picture_of_twice_the_size_of_the_svg(tmp_path: Path) -> None:
    code, _, picture = check(tmp_path, Made().lines())
    data = picture.read_bytes()
    assert code == 0 and data.startswith(b"\x89PNG\r\n")
    sides = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    assert sides == (WIDE.width * SCALE, WIDE.height * SCALE)


def test_text_is_drawn_with_the_font_that_comes_along(verdict: Verdict) -> None:
    (result,) = verdict.collectives.values()
    other = verdict.model_copy(update={"collectives": {"all_gather": result}})
    assert png(verdict) != png(other), "only the title differs"
    assert png(verdict) == png(verdict)


def test_a_log_without_a_table_has_no_picture_but_a_verdict(tmp_path: Path) -> None:
    code, said, picture = check(tmp_path, ["nothing"])
    assert code == 2 and "no table" in said and not picture.exists()


def test_without_the_renderer_the_cure_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    code, said, picture = check(tmp_path, Made().lines())
    assert code == 64 and "pip install" in said and not picture.exists()
