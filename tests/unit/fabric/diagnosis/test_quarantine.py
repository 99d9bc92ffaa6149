"""`busbar diagnose --quarantine` and `--release`: what they write and what they refuse."""

import errno
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.config import load
from busbar.exits import Failed
from busbar.fabric.diagnosis import Diagnosis, State
from busbar.fabric.diagnosis.findings import Findings, Row
from busbar.fabric.diagnosis.quarantine import edit, reasons, with_partners
from busbar.hosts.inventory import Inventory
from tests.support.clusters import site
from tests.unit.fabric.diagnosis.stack import COMMENT, FILE, Stack, diagnose


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stack:
    """A stack of six workers, of which gpu-5 and gpu-6 are in quarantine."""
    cluster = site(workers={"h100": 6})
    for number, reason in ((4, "busbar diagnose 2026-01-01: node 190 of 400 GB/s"), (5, "ticket 4711")):
        cluster["hosts"]["workers"][number]["quarantine"] = reason
    made = Stack(monkeypatch, tmp_path, cluster, [f"gpu-{number}" for number in range(1, 5)])
    made.pair("A", 390, "gpu-1", "gpu-2")
    made.pair("A", 390, "gpu-3", "gpu-4")
    return made


def slow(stack: Stack, node: str) -> None:
    """Both runs with healthy partners are bad, after a first pair that was."""
    results = stack.state.results
    results[:] = [found for found in results if node not in found[0].nodes]
    stack.pair("A", 190, node, "gpu-3")
    stack.pair("B", 190, node, "gpu-3")
    stack.pair("B", 190, node, "gpu-4")


def quarantines() -> dict[str, str]:
    workers = yaml.safe_load(FILE.read_text())["config"]["busbar:cluster"]["hosts"]["workers"]
    return {each["name"]: each["quarantine"] for each in workers if "quarantine" in each}


def test_a_named_node_gets_its_line_with_what_was_measured_and_all_else_stays(found: Stack) -> None:
    slow(found, "gpu-2")
    found.pair("A", 390, "gpu-1", "gpu-4")
    before = FILE.read_text()
    assert (diagnose().exit_code, FILE.read_text()) == (1, before), "only the option writes"
    done = diagnose("--quarantine")
    assert done.exit_code == 1
    assert re.fullmatch(r"busbar diagnose 20..-..-..: node 190 of 400 GB/s", quarantines()["gpu-2"])
    line = next(
        line for line in FILE.read_text().splitlines(True) if "node 190" in line and "2026-01-01" not in line
    )
    assert FILE.read_text().replace(line, "") == before
    assert "Next: busbar preview prod, then busbar up prod" in done.stderr


def test_a_node_that_is_in_quarantine_keeps_its_reason(found: Stack) -> None:
    found.state.nodes.append("gpu-6")
    slow(found, "gpu-6")
    found.pair("A", 390, "gpu-3", "gpu-4")
    assert diagnose("--quarantine").exit_code == 1
    assert quarantines()["gpu-6"] == "ticket 4711"


def test_more_nodes_than_the_limit_of_the_pool_are_refused_and_none_is_written(found: Stack) -> None:
    found.pair("A", 390, "gpu-3", "gpu-4")
    slow(found, "gpu-1")
    slow(found, "gpu-2")
    before = FILE.read_text()
    done = diagnose("--quarantine")
    assert (done.exit_code, FILE.read_text()) == (1, before)
    assert "at most 1 of the 6 workers of pool h100 may be put in quarantine at once." in done.stderr


def test_the_last_usable_node_of_a_pool_is_not_put_in_quarantine(tmp_path: Path) -> None:
    cluster = site(workers={"h100": 3})
    cluster["pools"]["h100"]["quarantine_limit"] = "100%"
    names = tuple(each["name"] for each in cluster["hosts"]["workers"])
    inventory = Inventory.of(load(cluster))
    rows = [Row("node", name, (name,), None, "", 190, 400, 2, (), (), ()) for name in names]

    def found(*rows: Row) -> Findings:
        return Findings("h100", rows, (), {}, (), "", 6, 60, 1)

    assert reasons(found(*rows[:2]), inventory.cluster).keys() == {*names[:2]}
    with pytest.raises(Failed, match="at most 2 of the 3 workers") as refused:
        reasons(found(*rows), inventory.cluster)
    assert "raise" not in str(refused.value), "its limit is that of all workers already"


def test_of_two_nodes_of_which_one_is_slow_none_is_put_in_quarantine(found: Stack) -> None:
    found.state.nodes[:] = ["gpu-1", "gpu-2"]
    found.state.results.clear()
    found.pair("A", 190, "gpu-1", "gpu-2")
    before = FILE.read_text()
    assert diagnose("--quarantine", "--nodes", "gpu-1,gpu-2").exit_code == 1
    assert FILE.read_text() == before


def judged(stack: Stack, busbw: float, *partners: str, node: str = "gpu-5") -> None:
    stack.state.nodes.append(node)
    for partner in partners:
        stack.pair("B", busbw, node, partner)


def test_a_node_that_passed_with_three_healthy_partners_is_released(found: Stack) -> None:
    judged(found, 390, "gpu-1", "gpu-2", "gpu-3")
    done = diagnose("--release")
    assert (done.exit_code, quarantines()) == (0, {"gpu-6": "ticket 4711"})
    assert FILE.read_text().startswith(COMMENT)
    [scope] = found.scopes
    assert (scope.judged, scope.nodes) == ({"gpu-5"}, ("gpu-5", "gpu-1", "gpu-2", "gpu-3", "gpu-4"))


def test_nodes_of_its_own_rail_group_judge_a_node_first() -> None:
    cluster = site(workers={"h100": 6})
    for number, worker in enumerate(cluster["hosts"]["workers"]):
        worker["topology"] = {"rail_group": "su1" if number < 3 else "su2"}
    cluster["hosts"]["workers"][4]["quarantine"] = "x"
    found = with_partners(Inventory.of(load(cluster)), "h100", ["gpu-5"])
    assert found == ["gpu-5", "gpu-4", "gpu-6", "gpu-1", "gpu-2", "gpu-3"]


@pytest.mark.parametrize(
    ("busbw", "partners", "absent", "code", "why"),
    [
        (390, ("gpu-1", "gpu-2"), "", 2, "it ran with 2 healthy partners, 3 are needed"),
        (190, ("gpu-1", "gpu-2", "gpu-3"), "", 1, "it is slow: node 190 of 400 GB/s"),
        (390, ("gpu-1", "gpu-2", "gpu-3"), "not Ready", 2, "it was not measured: not Ready"),
    ],
)
def test_a_node_that_did_not_stays_and_says_why(
    found: Stack, busbw: float, partners: tuple[str, ...], absent: str, code: int, why: str
) -> None:
    judged(found, busbw, *partners)
    found.pair("A", busbw, "gpu-5", "gpu-4")  # its first partner judges nobody
    found.state.absent |= {"gpu-5": absent} if absent else {}
    before = FILE.read_text()
    done = diagnose("--release")
    assert (done.exit_code, FILE.read_text()) == (code, before)
    assert f"gpu-5 stays in quarantine: {why}" in done.stderr


def test_a_quarantine_of_somebody_is_only_ended_by_its_name(found: Stack) -> None:
    judged(found, 390, "gpu-1", "gpu-2", "gpu-3", node="gpu-6")
    assert diagnose("--release", "--nodes", "gpu-6").exit_code == 0
    assert [*quarantines()] == ["gpu-5"]


@pytest.mark.parametrize(("words", "node"), [("--quarantine", "gpu-2"), ("--release", "gpu-5")])
def test_a_reason_that_somebody_writes_during_the_diagnosis_stays(
    found: Stack, monkeypatch: pytest.MonkeyPatch, words: str, node: str
) -> None:
    slow(found, "gpu-2")
    found.pair("A", 390, "gpu-1", "gpu-4")
    judged(found, 390, "gpu-1", "gpu-3", "gpu-4")
    run = Diagnosis.run

    def edits(self: Diagnosis) -> State:
        FILE.write_text(edit(edit(FILE.read_text(), node, None), node, "RMA 12"))
        return run(self)

    monkeypatch.setattr(Diagnosis, "run", edits)
    done = diagnose(words)
    assert quarantines()[node] == "RMA 12"
    assert f"{node}: its quarantine was changed meanwhile, and stays" in done.stderr


def test_a_full_disk_leaves_the_stack_file_as_it_was(found: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: Any, **__: Any) -> None:
        path.open("w").close()
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    judged(found, 390, "gpu-1", "gpu-2", "gpu-3")
    before = FILE.read_text()
    monkeypatch.setattr(Path, "write_text", full)
    assert diagnose("--release").exit_code == 1
    assert FILE.read_text() == before


@pytest.mark.parametrize("text", ["config: [", ""])
def test_a_file_that_became_invalid_during_the_diagnosis_is_named_and_left_alone(
    found: Stack, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    slow(found, "gpu-2")
    found.pair("A", 390, "gpu-1", "gpu-4")
    run = Diagnosis.run

    def edits(self: Diagnosis) -> State:
        FILE.write_text(text)
        return run(self)

    monkeypatch.setattr(Diagnosis, "run", edits)
    done = diagnose("--quarantine")
    assert (done.exit_code, FILE.read_text()) == (1, text)
    assert done.stderr.splitlines()[-1].startswith("error: Pulumi.prod.yaml: ")
