"""Which algorithm a log proves, and what that changes about the expected bandwidth."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.judge.nccl import Expectation
from busbar.judge.nccl.checks.bandwidth import assess
from busbar.judge.nccl.checks.context import algorithm_used
from busbar.judge.nccl.expected.system import System
from tests.unit.judge.nccl.logs import Made
from tests.unit.judge.nccl.reading import judge
from tests.unit.judge.nccl.tables import MIB, context, measurement, printed, row, said, table

ENV = said("NCCL_DEBUG=INFO")


def hosts(number: int) -> System:
    return System("A100", number, 8, 8, 200.0, 300.0)


def environment(*values: str) -> dict[str, Any]:
    return {"environment": {key: line for value in values for key, line in said(value).items()}}


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        ("RING", "ring"),
        ("Tree", "tree"),
        ("NVLSTree", "nvls"),
        ("nvls,nvlstree", "nvls"),
        ("Ring,Tree", "ring"),
        ("^NVLS,NVLSTree", "ring"),
        ("^Ring", None),
        ("allreduce:ring;allgather:nvls", "ring"),
        ("allgather:ring", None),
        ("Ring,NVLS", None),
    ],
)
def test_nccl_algo_names_the_algorithm(asked: str, used: str | None) -> None:
    assert algorithm_used(printed(**environment(f"NCCL_ALGO={asked}")), [], hosts(2)) == used


def test_processes_that_were_asked_for_different_algorithms_prove_none() -> None:
    evidence = printed(**environment("NCCL_ALGO=RING", "NCCL_ALGO=TREE"))
    assert algorithm_used(evidence, [], hosts(2)) is None


def test_what_nccl_chose_for_the_largest_message_outweighs_what_was_asked_for() -> None:
    evidence = printed(**environment("NCCL_ALGO=RING"))
    evidence.algorithms = said("AllReduce TREE") | said("AllReduce NVLS_TREE")
    evidence.algorithm_sizes = {"AllReduce TREE": 8, "AllReduce NVLS_TREE": 2**30}
    assert algorithm_used(evidence, [], hosts(2)) == "nvls"


@pytest.mark.parametrize(
    ("facts", "domains", "used"),
    [
        # these GPUs cannot reduce in their NVSwitch
        ({"environment": ENV, "nvls_channels": said("16")}, 2, None),
        # NCCL_ALGO may be set, and not printed
        ({"nvls_channels": said("16")}, 2, None),
        ({"environment": ENV}, 2, None),
        ({"nvls_channels": said("0")}, 2, "ring"),
        (environment("NCCL_NVLS_ENABLE=0"), 1, "ring"),
        ({"versions": said("2.16.2+cuda12.0")}, 1, "ring"),
        ({"versions": said("2.17.1+cuda12.1")}, 1, None),
        ({"versions": said("2.17.1+cuda12.1")}, 2, "ring"),
        ({"versions": said("2.18.1+cuda12.1")}, 2, None),
    ],
)
def test_what_nccl_prints_of_nvls_tells_whether_it_is_the_default(
    facts: dict[str, Any], domains: int, used: str | None
) -> None:
    assert algorithm_used(printed(**facts), [], hosts(domains)) == used


def test_channels_of_nvls_and_no_other_setting_prove_nvls_on_whole_boards() -> None:
    evidence = printed(environment=ENV, nvls_channels=said("16"))
    assert algorithm_used(evidence, [], System("H100", 2, 8, 8, 400.0, 450.0)) == "nvls"


@pytest.mark.parametrize(("kind", "redop"), [("int8", "sum"), ("f8e4m3", "sum"), ("float", "prod")])
def test_what_nvls_does_not_reduce_goes_round_a_ring(kind: str, redop: str) -> None:
    run = table([row(1024 * MIB, type=kind, redop=redop)], 16)
    evidence = printed(environment=ENV, nvls_channels=said("16"))
    assert algorithm_used(evidence, [run], hosts(2)) == "ring"


WANT = Expectation(gpu="B200", nodes=2, gpus_per_node=8, rails=8, rate_gbps=400)


def of(value: str, **want: object) -> str:
    run = table([row(8192 * MIB, measurement(busbw=value))], ranks=16)
    return assess(context(WANT.model_copy(update=want), run), "all_reduce")[0].code


def test_a_ring_on_two_hosts_with_nvswitch_passes_only_where_a_ring_is_known() -> None:
    assert of("344.70") == "busbw.algorithm_unknown"
    assert of("344.70", algorithm="ring") == "busbw.low"
    assert of("360.00", algorithm="ring") == "busbw.in_range"
    assert of("344.70", algorithm="nvls") == "busbw.below_floor"
    assert of("717.00") == "busbw.in_range"
    assert of("300.00") == "busbw.below_floor"
    assert of("344.70", expected_busbw_gbps=700.0) == "busbw.below_floor"


def test_a_log_that_says_ring_is_held_against_a_ring() -> None:
    lines = list(Made().lines())
    want = Expectation(profile="h100-coreweave", nodes=2)
    assert judge(lines, want).check("busbw").status == "unknown"
    ring = "worker-0:40:90 [0] NCCL INFO NCCL_ALGO set by environment to RING"
    verdict = judge([ring, *lines], want)
    assert verdict.check("busbw").status == "pass" and verdict.expectation["algorithm"] == "ring"
