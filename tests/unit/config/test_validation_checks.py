"""A profile or a value of the validation lets no pool pass without the fabric that it has."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.config import ConfigError, load, warnings
from tests.support.clusters import H100_POOL, site


def refused(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(site(**changes))
    [finding] = map(str, caught.value.findings)
    return finding


def warned(**changes: Any) -> list[str]:
    return [text for text in map(str, warnings(load(site(**changes)))) if text.startswith("validation.")]


def pool(**changes: Any) -> dict[str, Any]:
    return {"h100": {**H100_POOL, **changes}}


def test_a_profile_without_a_fabric_is_refused_for_a_pool_with_rails() -> None:
    said = refused(validation={"profile": "a100-noib"}, pools=pool(gpu_model="A100"))
    assert said.startswith(
        "validation.profile: a100-noib accepts TCP between hosts, and pools.h100 has 8 rails. Fix: "
    )
    assert "validation.transport: socket" in said


def test_tcp_that_is_written_out_is_accepted() -> None:
    tcp = {"profile": "a100-noib", "transport": "socket", "expected_busbw_gbps": 5}
    assert load(site(validation=tcp, pools=pool(gpu_model="A100")))


@pytest.mark.parametrize(
    ("of_pool", "profile", "message"),
    [
        ({"gpu_model": "A100"}, "h100-ib-8x400", "h100-ib-8x400 is for H100, and pools.h100 has A100"),
        ({"gpu_model": "H100 PCIe"}, "h100-ib-8x400", "is for H100, and pools.h100 has H100 PCIe"),
        (
            {"link_layer": "ethernet"},
            "h100-ib-8x400",
            "is for infiniband, and pools.h100.link_layer is ethernet",
        ),
        ({}, "roce", "roce is for roce, and pools.h100.link_layer is infiniband"),
    ],
)
def test_a_profile_of_other_hardware_than_the_pool_is_refused(
    of_pool: dict[str, Any], profile: str, message: str
) -> None:
    assert message in refused(validation={"profile": profile}, pools=pool(**of_pool))


def test_the_profile_of_the_pool_is_accepted_without_a_word() -> None:
    assert warned(validation={"profile": "h100-ib-8x400"}) == []


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"expected_busbw_gbps": 3200}, "validation.expected_busbw_gbps"),
        (
            {"collectives": ["all_gather"], "expected_by_collective": {"all_gather": 3200}},
            "validation.expected_by_collective.all_gather",
        ),
    ],
)
def test_an_expectation_in_gigabits_is_refused(given: dict[str, Any], path: str) -> None:
    said = refused(validation=given)
    assert said.startswith(f"{path}: 3200 GB/s is more than pools.h100 can carry, ")
    assert said.endswith("Fix: give GB/s (10^9 bytes), not Gb/s, or the pool a value of its own")


def test_an_expectation_at_the_ceiling_is_accepted() -> None:
    ceiling = float(refused(validation={"expected_busbw_gbps": 3200}).split(" GB/s")[1].split()[-1])
    assert load(site(validation={"expected_busbw_gbps": ceiling}))
    assert refused(validation={"expected_busbw_gbps": ceiling + 1})


def test_an_expectation_far_below_what_is_computed_is_a_warning() -> None:
    assert warned(validation={"expected_busbw_gbps": 241}) == []
    [said] = warned(validation={"expected_busbw_gbps": 240})
    assert said == (
        "validation.expected_busbw_gbps: 240 GB/s is far below what pools.h100 should do, 481 GB/s"
    )


def test_a_tolerance_above_a_half_is_a_warning() -> None:
    assert warned(validation={"tolerance": 0.5}) == []
    assert warned(validation={"tolerance": 0.6}) == [
        "validation.tolerance: 0.6 accepts 40% of the expected bandwidth. Fix: 0.1 accepts 90 %"
    ]


def test_messages_too_small_for_a_fabric_are_a_warning() -> None:
    small = {"min_bytes": "1M", "max_bytes": "1023M"}
    [said] = warned(validation=small)
    assert said.startswith(
        "validation.max_bytes: 1072693248 bytes are too few for the bandwidth of a fabric."
    )
    assert warned(validation={**small, "max_bytes": "1G"}) == []
    assert warned(validation={**small, "transport": "socket", "expected_busbw_gbps": 1}) == []


@pytest.mark.parametrize("level", ["WARN", "VERSION", "", "warn"])
def test_a_level_of_nccl_debug_that_hides_the_evidence_is_refused(level: str) -> None:
    said = refused(validation={"env": {"NCCL_DEBUG": level}})
    assert said.startswith("validation.env.NCCL_DEBUG: ") and said.endswith(
        "Fix: remove it (busbar sets INFO)"
    )


@pytest.mark.parametrize("level", ["INFO", "TRACE"])
def test_a_level_of_nccl_debug_that_keeps_the_evidence_is_accepted(level: str) -> None:
    assert load(site(validation={"env": {"NCCL_DEBUG": level}}))


def test_hcas_are_not_chosen_by_an_environment_variable() -> None:
    said = refused(validation={"env": {"NCCL_IB_HCA": "mlx5_0"}})
    assert said.startswith("validation.env.NCCL_IB_HCA: ") and "validation.hcas" in said


def test_a_validation_that_is_switched_off_is_not_compared() -> None:
    assert load(site(validation={"enabled": False, "profile": "a40"}))


def test_the_algorithm_of_the_profile_sets_the_ceiling_as_it_does_for_the_job() -> None:
    sharp = {"profile": "h100-sharp", "expected_busbw_gbps": 470}
    assert load(site(workers={"h100": 12}, validation=sharp))
    assert "more than pools.h100 can carry" in refused(
        workers={"h100": 12}, validation={**sharp, "algorithm": "ring"}
    )


def test_workers_that_name_no_pool_are_compared_as_those_of_the_only_one() -> None:
    data = site(validation={"expected_busbw_gbps": 3200})
    for worker in data["hosts"]["workers"]:
        del worker["pool"]
    with pytest.raises(ConfigError, match=r"3200 GB/s is more than pools\.h100 can carry"):
        load(data)
