"""Healthy runs that print something rare pass: cycles, parts of lines, clocks, names, ends of allocations."""

from __future__ import annotations

import pytest

from busbar.judge.nccl import Expectation, Verdict, judge
from tests.unit.judge.nccl.logs import Made

WANT = Expectation(profile="h100-ib-8x400", nodes=2)


def cycles(*peaks: float) -> Verdict:
    """A log in which the size sweep runs once for each of PEAKS."""
    log, sweeps = Made().lines(), []
    for peak in peaks:
        made = Made()
        made.peak = peak
        sweeps.append([line for line in made.lines() if line.lstrip()[:1].isdigit()])
    rows = [row for sweep in sweeps for row in sweep]
    first = next(i for i, line in enumerate(log) if line.lstrip()[:1].isdigit())
    values = [float(row.split()[at]) for row in rows for at in (7, 11)]
    end = [line for line in log[first:] if not line.lstrip()[:1].isdigit()]
    average = f"# Avg bus bandwidth    : {sum(values) / len(values):g} "
    return judge([*log[:first], *rows, *(average if "# Avg" in line else line for line in end)], WANT)


def test_cycles_of_the_size_sweep_are_judged_by_the_worst() -> None:
    verdict = cycles(390.0, 389.0, 388.0)
    assert verdict.reasons == [] and verdict.busbw_gbps == 388.0
    assert not cycles(390.0, 200.0, 390.0).passed


def test_the_parts_of_a_line_in_a_cri_file_are_joined() -> None:
    log = []
    for line in Made().lines():
        half = len(line) // 2
        stamp = "2026-05-05T06:16:47.123456789Z stdout"
        log += [f"{stamp} P {line[:half]}", f"{stamp} F {line[half:]}"]
    assert judge(log, WANT).reasons == []


@pytest.mark.parametrize(("shift", "diagnosed"), [(-1, False), (4, True)])
def test_an_hour_that_is_set_back_is_no_stall(shift: int, diagnosed: bool) -> None:
    log = Made().lines()
    rows = [i for i, line in enumerate(log) if line.lstrip()[:1].isdigit()]
    log = [
        f"2026-10-25 {2 + (shift if i > rows[2] else 0):02d}:{i % 60:02d}:00 {line}"
        for i, line in enumerate(log)
    ]
    names = [each.name for each in judge(log, WANT).diagnoses]
    assert ("stall-between-rows" in names) is diagnosed


def test_an_allocation_that_salloc_gives_back_was_not_cancelled() -> None:
    end = ["salloc: Relinquishing job allocation 812", "salloc: Job allocation 812 has been revoked."]
    assert judge([*Made().lines(), *end], WANT).reasons == []
    assert judge([*Made().lines(), end[1]], WANT).verdict == "fail"


def test_hcas_that_gib_opened_are_read() -> None:
    log = [line.replace("NET/IB : Using", "NET/gIB : Using") for line in Made().lines()]
    assert judge(log, WANT).check("hcas").status == "pass"


def test_a_rail_may_be_a_device_of_two_planes() -> None:
    made = Made()
    made.info = [
        f"{host}:40:90 [0] NCCL INFO NET/IB : Made virtual device [{device}] name=a+b speed=800000 ndevs=2"
        for host in made.hosts
        for device in range(8)
    ]
    for rate, status in ((800, "pass"), (400, "fail")):
        want = WANT.model_copy(update={"rate_gbps": rate})
        assert judge(made.lines(), want).check("rails").status == status
