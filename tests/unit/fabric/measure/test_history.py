"""What the runs of a stack say of each other: noise, runs below it, and what changed before them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.fabric.measure.history import Entry, Noise, Run, entries
from busbar.outputs.contract import FORMAT, PoolResult
from tests.support.verdicts import record

START = datetime(2026, 11, 24, 6, tzinfo=UTC)
SETTINGS = {"profile": "h100-ib-8x400", "max_bytes": "8589934592", "k3s": "v1.35.6+k3s1"}
NODES = ("gpu-1", "gpu-2")
STEADY = (390.0, 391.0, 389.0, 390.5, 389.5)

BOUNDED = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def run(number: int, busbw: float | None, nodes: tuple[str, ...] = NODES, **more: Any) -> Run:
    """The NUMBER-th run, an hour after the one before."""
    at = START + timedelta(hours=number)
    result = PoolResult(
        verdict=more.pop("verdict", "pass"),
        measured_at=at,
        busbw_gbps=busbw,
        nodes_measured=nodes,
        nccl_version=more.pop("nccl", "2.28.3"),
    )
    settings = SETTINGS | more.pop("settings", {})
    about = {"kind": "measure", "measured_at": None, "settings": settings, **more}
    return Run(record(number, *nodes, **about), result, at)


def summary(run: Run) -> dict[str, Any]:
    result = run.result.model_dump(mode="json", exclude_none=True)
    return {**result, "format": FORMAT, "record": run.record.model_dump(mode="json")}


# A summary of a run in which one value is another one.
ODD: tuple[dict[str, Any], ...] = ({"verdict": "good"}, {"measured_at": None}, {"format": 1})


def after(*values: float, **more: Any) -> Entry:
    """A run that measured the last value, after passes with the others."""
    *before, last = values
    runs = [run(number, value) for number, value in enumerate(before)]
    return entries([*runs, run(len(before), last, **more)])[-1]


def test_noise_is_known_from_five_passes_on_and_is_median_and_mad_of_those_before() -> None:
    assert after(*STEADY[:4], 300.0).noise is None
    assert after(*STEADY, 300.0).noise == Noise(390.0, 0.5, 5)


SPREAD = (350.0, 380.0, 390.0, 420.0, 460.0)


@pytest.mark.parametrize(
    ("before", "busbw", "is_low"),
    [
        # With little noise 3 % decide, with much noise four deviations of 30 GB/s.
        (STEADY, 378.0, True),
        (STEADY, 378.5, False),
        (STEADY, 500.0, False),
        (SPREAD, 271.0, False),
        (SPREAD, 269.0, True),
        ((400.0,) * 5, 390.0, False),
        ((400.0,) * 5, 387.0, True),
    ],
)
def test_a_run_below_the_noise_is_low(before: tuple[float, ...], busbw: float, is_low: bool) -> None:
    assert bool(after(*before, busbw).warning) is is_low


@pytest.mark.parametrize(
    "other",
    [
        {"nodes": ("gpu-1", "gpu-3")},
        {"settings": {"profile": "h100-sharp"}},
        {"settings": {"max_bytes": "1073741824"}},
        {"settings": {"transport": "socket"}},
        {"settings": {"rails": "4"}},
        {"pool": "b200"},
        {"verdict": "fail"},
    ],
    ids=["other nodes", "another profile", "another size", "TCP", "other rails", "another pool", "no pass"],
)
def test_runs_of_something_else_or_without_a_pass_are_no_noise(other: dict[str, Any]) -> None:
    runs = [run(number, value, **other) for number, value in enumerate(STEADY)]
    assert entries([*runs, run(9, 300.0)])[-1].noise is None


def test_other_versions_and_another_order_of_nodes_are_the_same_noise() -> None:
    runs = [run(number, value, settings={"k3s": f"v1.35.{number}"}) for number, value in enumerate(STEADY)]
    assert entries([*runs, run(9, 300.0, nodes=NODES[::-1])])[-1].warning


def test_what_changed_stands_beside_the_run_and_in_its_warning() -> None:
    low = after(*STEADY, 350.0, settings={"k3s": "v1.35.7+k3s1", "env NCCL_ALGO": "RING"}, nccl="2.29.1")
    assert low.warning == (
        "pool h100: 350 GB/s is 10.3% below the median of 5 passes on the same nodes (390 GB/s, MAD 0.5). "
        f"Changed since the run before: {'; '.join(low.changes)}"
    )
    assert low.changes[:2] == ("k3s v1.35.6+k3s1 -> v1.35.7+k3s1", "env NCCL_ALGO none -> RING")
    assert low.changes[2:] == ("nccl_version 2.28.3 -> 2.29.1",)


def test_other_nodes_are_a_change_where_these_were_never_measured() -> None:
    found = entries([run(0, 390.0, ("gpu-1", "gpu-2")), run(1, 390.0, ("gpu-2", "gpu-3"))])
    assert found[-1].changes == ("nodes added: gpu-3", "nodes left out: gpu-1")


def test_a_run_is_compared_with_the_last_one_on_its_own_nodes() -> None:
    others = run(1, 390.0, ("gpu-3", "gpu-4"), settings={"k3s": "v1.35.7+k3s1"})
    again = run(2, 390.0, settings={"k3s": "v1.35.7+k3s1"})
    assert entries([run(0, 390.0), others, again])[-1].changes == ("k3s v1.35.6+k3s1 -> v1.35.7+k3s1",)


def test_a_run_without_a_log_changes_no_version() -> None:
    found = entries([run(0, 390.0), run(1, None, verdict="unknown", nccl=None), run(2, 390.0)])
    assert [each.changes for each in found] == [(), (), ()]
    assert found[1].warning is None


def test_a_record_that_is_written_twice_counts_once_and_the_later_one_holds() -> None:
    first = run(0, 390.0)
    judged_again = replace(first, result=first.result.model_copy(update={"verdict": "fail"}))
    [entry] = entries([first, judged_again])
    assert entry.run.result.verdict == "fail"


@pytest.mark.parametrize(
    "found", [None, [], {"id": 1}, *({**summary(run(0, 390.0)), **more} for more in ODD)], ids=str
)
def test_something_else_is_no_record(found: Any) -> None:
    assert Run.read(found) is None


def test_as_json_values_an_entry_has_its_noise_floor_and_changes() -> None:
    found = after(*STEADY, 350.0).as_object()
    assert found["noise"] == {"median": 390.0, "mad": 0.5, "passes": 5, "floor": 378.3}
    assert (found["low"], found["result"]["busbw_gbps"], found["changes"]) == (True, 350.0, [])
    assert "curve" not in found["result"]


@BOUNDED
@given(st.permutations([run(number, value) for number, value in enumerate((*STEADY, 350.0))]))
def test_the_order_of_the_records_does_not_matter(runs: list[Run]) -> None:
    found = entries(runs)
    assert [each.run.record.job_uid for each in found] == [f"u-{number}" for number in range(6)]
    assert [bool(each.warning) for each in found] == [False] * 5 + [True]


@pytest.mark.parametrize(("hours", "is_low"), [(4.5, False), (-1, True)])
def test_runs_on_a_machine_that_was_there_before_are_no_noise(hours: float, is_low: bool) -> None:
    runs = [run(number, value) for number, value in enumerate((*STEADY, 350.0))]
    assert bool(entries(runs, {"gpu-2": START + timedelta(hours=hours)})[-1].warning) is is_low
