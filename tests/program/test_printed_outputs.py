"""How many lines of outputs `pulumi up` prints: one per value, and two for the brackets around a group.

The rule is what Pulumi 3.259 does; it leaves out an empty list.
"""

from __future__ import annotations

from typing import Any

from tests.program.answers import healthy
from tests.program.harness import Run, run_program
from tests.support.clusters import site
from tests.support.verdicts import passing

LIMIT = 40


def sweep() -> dict[str, Any]:
    """A pass of two collectives from 1 KiB to 16 GiB."""
    verdict = passing()
    [result] = verdict["collectives"].values()
    rows = [{**result["curve"][0], "size_bytes": 2**power} for power in range(10, 35)]
    curve = {**result, "curve": rows}
    return {**verdict, "collectives": {"all_reduce": curve, "all_gather": curve}}


def bring_up(workers: int) -> Run:
    cluster = site(load_balancers=2, servers=3, workers={"h100": workers})
    run = run_program(cluster, healthy(cluster, lambda _: sweep()))
    assert run.error is None
    return run


def printed_lines(value: Any) -> int:
    """The lines of one value, as Pulumi's CLI prints it."""
    items = value.values() if isinstance(value, dict) else value
    if value == []:
        return 0
    if not isinstance(value, dict | list) or not value:
        return 1
    return 2 + sum(printed_lines(item) for item in items)


def test_the_outputs_of_eight_workers_and_two_collectives_take_at_most_40_lines() -> None:
    outputs = bring_up(8).outputs
    assert len(outputs["nccl"]["h100"]["curve"]) == 2
    assert 1 + sum(printed_lines(value) for value in outputs.values()) <= LIMIT


def test_more_workers_do_not_take_more_lines() -> None:
    few, many = (sum(printed_lines(value) for value in bring_up(n).outputs.values()) for n in (2, 60))
    assert few == many
