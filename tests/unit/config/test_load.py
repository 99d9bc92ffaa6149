"""What a valid configuration becomes."""

from typing import Any

import pytest

from busbar.config import Cluster, load
from busbar.config.cluster import Validation
from busbar.hosts.inventory import Inventory
from tests.support.clusters import H100_POOL, site
from tests.unit.config.edits import edited


def test_numbers_and_booleans_may_arrive_as_text_because_pulumi_config_set_stores_them_so() -> None:
    pool = {**H100_POOL, "gpus": "8", "rate_gbps": "400"}
    validation = {"tolerance": "0.05", "enforce": "false", "min_bytes": "1048576"}
    cluster = load(site(pools={"h100": pool}, validation=validation))
    assert (cluster.pools["h100"].gpus, cluster.pools["h100"].rate_gbps) == (8, 400.0)
    found = cluster.validation
    assert (found.tolerance, found.enforce, found.min_bytes) == (0.05, False, 1 << 20)


def test_text_may_arrive_as_a_number_or_a_boolean() -> None:
    pool = {**H100_POOL, "labels": {"rack": 7, "reserved": True}}
    cluster = load(site(pools={"h100": pool}, validation={"env": {"NCCL_IB_QPS_PER_CONNECTION": 2}}))
    assert cluster.pools["h100"].labels == {"rack": "7", "reserved": "true"}
    assert cluster.validation.env == {"NCCL_IB_QPS_PER_CONNECTION": "2"}


def test_the_comment_of_a_host_key_is_dropped_and_an_ipv6_address_kept_in_its_short_form() -> None:
    data = site()
    key = data["hosts"]["workers"][0]["host_key"]
    data["hosts"]["workers"][0]["host_key"] = f"  {key}   root@gpu-1  "
    assert load(data).hosts.workers[0].host_key == key
    data["hosts"]["load_balancers"][0]["address"] = "2001:0db8:0000::0011"
    assert load(data).hosts.load_balancers[0].address == "2001:db8::11"


def test_a_cluster_survives_being_written_out_and_loaded_again() -> None:
    cluster = load(site(load_balancers=2))
    assert load(cluster.model_dump()) == cluster
    assert Cluster.model_validate_json(cluster.model_dump_json()) == cluster


@pytest.mark.parametrize(
    ("chart", "repository"),
    [
        ("gpu-operator", "https://helm.ngc.nvidia.com/nvidia"),
        ("oci://registry.example.com/charts/gpu-operator", None),
        ("./charts/gpu-operator", None),
    ],
)
def test_only_a_chart_that_is_named_comes_from_the_repository(chart: str, repository: str | None) -> None:
    cluster = load(site(gpu_operator={"chart": chart, "version": "v26.7.0"}))
    assert cluster.gpu_operator.repository_url == repository


@pytest.mark.parametrize(
    ("given", "transport"), [({"transport": "gpudirect-rdma"}, "gpudirect-rdma"), ({}, "socket")]
)
def test_the_transport_is_configured_or_of_the_profile(given: dict[str, str], transport: str) -> None:
    assert Validation.model_validate({"profile": "a40", **given}).required_transport == transport
    assert Validation().required_transport == "gpudirect-rdma"


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        *((4096, 4096), (4096.0, 4096), ("1", 1), ("1B", 1), ("1K", 2**10), ("1k", 2**10), ("1M", 2**20)),
        *(("64 MiB", 2**26), ("1G", 2**30), ("1T", 2**40), ("3tib", 3 * 2**40)),
    ],
)
def test_sizes_are_read_in_the_binary_units_of_nccl_tests(written: object, size_bytes: int) -> None:
    assert load(site(validation={"min_bytes": 1, "max_bytes": written})).validation.max_bytes == size_bytes


# Method of a pool -> its settings, a number of workers, and the answer.
NUMBERS: dict[str, list[tuple[dict[str, Any], int, int]]] = {
    "restarts_at_once": [
        ({"max_unavailable": "10%"}, 1, 1),
        ({"max_unavailable": "10%"}, 44, 5),
        ({"max_unavailable": "1%"}, 440, 5),
        ({"max_unavailable": "100%"}, 44, 44),
        ({"max_unavailable": 4}, 44, 4),
        ({"max_unavailable": "50"}, 44, 50),
    ],
    "quarantined_at_once": [
        ({}, 4, 1),
        ({}, 19, 1),
        ({}, 20, 2),
        ({"quarantine_limit": "50%"}, 3, 1),
        ({"quarantine_limit": 3}, 4, 3),
        ({"quarantine_limit": "100%"}, 7, 7),
    ],
    "pause_after_restart": [
        ({"max_unavailable": 1}, 44, 0),
        ({"max_unavailable": 2}, 44, 60),
        ({"max_unavailable": "10%"}, 44, 60),
        ({"max_unavailable": 2, "pause_seconds": 0}, 44, 0),
        ({"max_unavailable": 1, "pause_seconds": 30}, 44, 30),
    ],
}


@pytest.mark.parametrize(
    ("method", "settings", "workers", "number"),
    [(method, *row) for method, rows in NUMBERS.items() for row in rows],
)
def test_a_part_of_a_pool_is_rounded_up(method: str, settings: Any, workers: int, number: int) -> None:
    pool = load(site(pools={"h100": {**H100_POOL, **settings}})).pools["h100"]
    assert getattr(pool, method)(workers) == number


def test_numbers_of_rotations_are_no_secrets_although_they_are_named_after_tokens() -> None:
    numbers = {"certificates": 1, "server_token": 3, "agent_token": 4}
    rotated = load(site(k3s={"sha256": {"amd64": "ab" * 32}, "rotate": numbers})).k3s.rotate
    assert rotated.model_dump() == numbers
    assert {*load(site()).k3s.rotate.model_dump().values()} == {0}


def test_the_levels_of_a_worker_become_labels_of_its_node_the_farthest_first() -> None:
    place = {"nvlink_domain": "rack-7", "rail_group": "su03", "block": 1}
    site = edited({"hosts.workers[0].topology": place}, workers={"h100": 1, "a100": 1})
    placed, without = Inventory.of(load(site)).workers
    assert placed.labels == (
        ("fabric.topograph.run/tier-1", "1"),
        ("fabric.topograph.run/tier-0", "su03"),
        ("accelerator.topograph.run/domain", "rack-7"),
    )
    assert without.labels == (), "another pool may have other levels"
