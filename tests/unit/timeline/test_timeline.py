"""The critical path of an update, its file and its picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from busbar.timeline import Step, Timeline, picture


def _step(name: str, began: float, ended: float, verb: str = "created") -> Step:
    return Step(name, f"urn:{name}", verb, began, ended)


def _timeline(*steps: Step, **ahead: list[str]) -> Timeline:
    """`ahead` are names; each stands for its URN."""
    urns = {f"urn:{name}": [f"urn:{each}" for each in names] for name, names in ahead.items()}
    return Timeline("site", "2026-11-22 01:00:00 UTC", 60.0, steps, urns)


def _path(timeline: Timeline) -> list[tuple[str, float]]:
    return [(wait.step.name, round(wait.idle, 1)) for wait in timeline.critical_path()]


def test_the_path_ends_with_the_last_step_and_follows_the_dependency_that_ended_last() -> None:
    found = _timeline(
        _step("preflight", 1, 5),
        _step("server", 5.5, 20),
        _step("download", 5, 12),
        _step("worker", 21, 30),
        _step("other", 5, 29),
        server=["preflight"],
        download=["preflight"],
        worker=["download", "server"],
    )
    assert _path(found) == [("preflight", 1.0), ("server", 0.5), ("worker", 1.0)]


def test_a_dependency_that_had_nothing_to_do_is_passed_through() -> None:
    found = _timeline(
        _step("server", 0, 10), _step("chart", 10, 30), chart=["provider"], provider=["kubeconfig"],
        kubeconfig=["server"],
    )  # fmt: skip
    assert _path(found) == [("server", 0.0), ("chart", 0.0)]


def test_a_step_that_ended_after_another_began_was_not_waited_for() -> None:
    found = _timeline(_step("early", 0, 30), _step("late", 10, 40), late=["early"])
    assert _path(found) == [("late", 10.0)]


def test_a_circle_of_parents_ends() -> None:
    found = _timeline(_step("one", 0, 1), _step("two", 1, 2), one=["two"], two=["one"])
    assert _path(found) == [("one", 0.0), ("two", 0.0)]


def test_an_update_without_steps_has_no_path() -> None:
    assert _timeline().critical_path() == []


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    written = _timeline(_step("server", 0, 10), _step("chart", 10, 30), chart=["server"])
    written.write(tmp_path / "site")
    read = Timeline.read(tmp_path / "site")
    assert read is not None
    assert read.critical_path() == written.critical_path()
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["timeline.json"]


def test_without_a_record_there_is_no_timeline(tmp_path: Path) -> None:
    assert Timeline.read(tmp_path) is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "steps": 3}', '{"format": 1, "steps": []}']
)
def test_a_file_of_another_format_is_named_with_the_cure(tmp_path: Path, content: str) -> None:
    (tmp_path / "timeline.json").write_text(content)
    with pytest.raises(ValueError, match=r"timeline\.json is not a timeline: .*Fix: remove it"):
        Timeline.read(tmp_path)


def _bars(svg: str) -> dict[str, str]:
    """Name of the step -> class of its bar."""
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    return {
        str(bar.findtext(f"{space}title")).split(":")[0]: bar.attrib["class"]
        for bar in root.iter(f"{space}rect")
        if bar.find(f"{space}title") is not None
    }


def test_the_picture_marks_the_critical_path_and_failed_steps() -> None:
    svg = picture(
        _timeline(_step("a<b", 0, 5), _step("chart", 5, 30), _step("worker", 1, 9, "failed"), chart=["a<b"])
    )
    assert _bars(svg) == {"a<b": "path", "chart": "path", "worker": "failed"}


def test_of_many_steps_the_longest_are_drawn_and_the_others_counted() -> None:
    short = [_step(f"label-{number}", 1, 1.1) for number in range(100)]
    svg = picture(_timeline(*short, _step("server", 2, 50), server=["label-7"]))
    bars = _bars(svg)
    assert len(bars) == 60 and "server" in bars and bars["label-7"] == "path"
    assert "41 shorter steps are left out" in svg


def test_a_timeline_is_plain_json(tmp_path: Path) -> None:
    path = _timeline(_step("server", 0, 10)).write(tmp_path)
    assert json.loads(path.read_text())["steps"][0] == {
        "name": "server", "urn": "urn:server", "verb": "created", "began": 0, "ended": 10,
    }  # fmt: skip
