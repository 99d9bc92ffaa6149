"""`pools.NAME.validation`: what differs in the validation of one pool, by its hardware."""

from typing import Any

import pytest

from busbar.cli.before import describe
from busbar.config import Cluster, load
from tests.support.clusters import site
from tests.unit.config.edits import findings, noted


def two_pools(own: dict[str, Any], **validation: Any) -> dict[str, Any]:
    """Pools h100 and old; `own` is the validation of old, which has other hardware."""
    data = site(workers={"h100": 2, "old": 2}, validation=validation)
    data["pools"]["old"] |= {"gpu_model": "A100", "rate_gbps": 200, "validation": own}
    return data


def loaded(own: dict[str, Any], **validation: Any) -> Cluster:
    return load(two_pools(own, **validation))


def test_a_pool_differs_in_what_it_sets_and_only_there() -> None:
    cluster = loaded({"tolerance": 0.2, "hcas": ["mlx5_0"]}, tolerance=0.05, iterations=50)
    old, h100 = cluster.validation_of("old"), cluster.validation_of("h100")
    assert (old.tolerance, old.hcas, old.iterations) == (0.2, ["mlx5_0"], 50)
    assert h100 == cluster.validation
    cluster = loaded({"env": {"A": "pool", "B": "pool"}}, env={"A": "all", "C": "all"})
    assert cluster.validation_of("old").env == {"A": "pool", "B": "pool", "C": "all"}, "added to that of all"


def test_check_config_says_what_each_pool_must_reach() -> None:
    data = two_pools({"tolerance": 0.2}, algorithm="ring")
    lines = [line.partition(", ")[2] for line in describe(load(data)) if line.startswith("validation of")]
    assert sorted(lines) == ["expected 200 GB/s, floor 160 GB/s", "expected 400 GB/s, floor 360 GB/s"]
    data["validation"]["enabled"] = False
    assert not [line for line in describe(load(data)) if "validation" in line]


def test_null_takes_back_what_is_set_for_all_and_what_neither_sets_is_left_to_the_profile() -> None:
    cluster = loaded({"expected_busbw_gbps": None}, expected_busbw_gbps=350)
    assert cluster.validation_of("old").expected_busbw_gbps is None
    cluster = loaded({"profile": "a100-sharp"})
    assert "algorithm" not in cluster.validation_of("old").model_fields_set
    assert cluster.validation_of("old").chosen("algorithm") == "sharp"


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"profile": "a100"}, "pools.old.validation.profile: 'a100' is not a profile"),
        ({"profile": "h100-ib-8x400"}, "pools.old.validation.profile: h100-ib-8x400 is for H100, and pools."),
        ({"profile": "a100-noib"}, "set pools.old.validation.transport: socket"),
        ({"expected_busbw_gbps": 3200}, "pools.old.validation.expected_busbw_gbps: 3200 GB/s is more than"),
        ({"expected_by_collective": {"all_gather": 100}}, "expected_by_collective.all_gather: is not in val"),
        ({"env": {"NCCL_DEBUG": "WARN"}}, "pools.old.validation.env.NCCL_DEBUG: "),
        ({"env": {"NCCL_IB_HCA": "mlx5_0"}}, "Fix: list the HCAs in pools.old.validation.hcas"),
        ({"tolerance": 1}, "pools.old.validation.tolerance"),
        ({"run": 2}, "pools.old.validation.run"),
    ],
)
def test_what_is_wrong_in_a_pool_is_refused_with_its_path(own: dict[str, Any], message: str) -> None:
    [said] = findings(two_pools(own))
    assert message in said


@pytest.mark.parametrize(
    "shared", [{"profile": "h100-ib-8x400"}, {"expected_busbw_gbps": 380}], ids=["profile", "bandwidth"]
)
def test_what_all_pools_share_has_to_fit_each_of_them_or_be_taken_back(shared: dict[str, Any]) -> None:
    [key] = shared
    [said] = findings(two_pools({}, **shared))
    assert "pools.old" in said
    assert getattr(load(two_pools({key: None}, **shared)).validation_of("old"), key) is None


def test_a_low_expectation_of_a_pool_is_a_warning_with_its_path() -> None:
    [said] = noted(two_pools({"expected_busbw_gbps": 20}), "pools.old.validation")
    assert said.startswith("pools.old.validation.expected_busbw_gbps: 20 GB/s is far below ")
