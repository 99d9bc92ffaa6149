"""What a valid configuration becomes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from busbar.config import Cluster, load, warnings
from busbar.config.cluster import Validation
from tests.support.clusters import H100_POOL, host, host_key, site


def test_a_site_of_the_smallest_size_gets_every_default() -> None:
    cluster = load(site(servers=1, workers={"h100": 1}))
    assert cluster.k3s.version == "v1.35.6+k3s1"
    assert cluster.network_operator.resource == "nvidia.com/hostdev"
    assert cluster.validation.enforce
    assert cluster.validation.collectives == ["all_reduce"]
    assert cluster.pools["h100"].link_layer == "infiniband"


def test_a_loaded_cluster_cannot_be_changed_afterwards() -> None:
    cluster = load(site())
    with pytest.raises(ValidationError, match="frozen"):
        cluster.name = "other"


def test_numbers_and_booleans_may_arrive_as_text_because_pulumi_config_set_stores_them_so() -> None:
    pool = {**H100_POOL, "gpus": "8", "rate_gbps": "400"}
    validation = {"tolerance": "0.05", "enforce": "false", "iterations": "20", "min_bytes": "1048576"}
    cluster = load(site(pools={"h100": pool}, validation=validation))
    assert cluster.pools["h100"].gpus == 8
    assert cluster.pools["h100"].rate_gbps == 400.0
    assert cluster.validation.tolerance == 0.05
    assert cluster.validation.enforce is False
    assert cluster.validation.min_bytes == 1 << 20


def test_text_may_arrive_as_a_number_or_a_boolean() -> None:
    pool = {**H100_POOL, "labels": {"rack": 7, "reserved": True}}
    cluster = load(site(pools={"h100": pool}, validation={"env": {"NCCL_IB_QPS_PER_CONNECTION": 2}}))
    assert cluster.pools["h100"].labels == {"rack": "7", "reserved": "true"}
    assert cluster.validation.env == {"NCCL_IB_QPS_PER_CONNECTION": "2"}


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [("512M", 512 << 20), ("8G", 8 << 30), ("1k", 1024), ("64 MiB", 64 << 20), (4096, 4096), (4096.0, 4096)],
)
def test_sizes_are_read_in_the_binary_units_of_nccl_tests(written: object, size_bytes: int) -> None:
    cluster = load(site(validation={"min_bytes": written, "max_bytes": "8G"}))
    assert cluster.validation.min_bytes == size_bytes


def test_the_comment_of_a_host_key_is_dropped_so_that_it_cannot_make_a_difference() -> None:
    data = site()
    key = data["hosts"]["workers"][0]["host_key"]
    data["hosts"]["workers"][0]["host_key"] = f"  {key}   root@gpu-1  "
    assert load(data).hosts.workers[0].host_key == key


def test_an_ipv6_address_is_kept_in_its_short_form() -> None:
    data = site()
    data["hosts"]["load_balancers"][0]["address"] = "2001:0db8:0000::0011"
    assert load(data).hosts.load_balancers[0].address == "2001:db8::11"


def test_the_largest_site_loads_with_all_its_pools() -> None:
    cluster = load(site(workers={f"pool-{i}": 44 for i in range(10)}))
    assert len(cluster.hosts.workers) == 440 and len(cluster.pools) == 10


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
    ("validation", "transport"),
    [
        ({"profile": "a40", "transport": "gpudirect-rdma"}, "gpudirect-rdma"),
        ({"profile": "a40"}, "socket"),
        ({}, "gpudirect-rdma"),
    ],
)
def test_the_transport_is_the_configured_one_else_that_of_the_profile(
    validation: dict[str, str], transport: str
) -> None:
    assert Validation.model_validate(validation).required_transport == transport


def test_many_workers_on_one_nfs_server_are_a_warning() -> None:
    def said(workers: int) -> list[str]:
        cluster = load(site(workers={"h100": workers}, nfs_server={"host": "lb-1", "folder": "/srv/x"}))
        return [each for each in map(str, warnings(cluster)) if each.startswith("nfs_server")]

    assert said(16) == []
    assert said(17)[0].startswith("nfs_server: 17 workers share one NFS server, which is enough for about 16")


def test_an_nfs_server_with_the_host_key_of_another_host_is_a_warning() -> None:
    data = site(nfs_server={"folder": "/srv/x"})
    data["hosts"]["nfs_server"] = {**host("nfs-1", "192.0.2.50"), "host_key": host_key("lb-1")}
    [found] = [each for each in map(str, warnings(load(data))) if "the same key" in each]
    assert found.startswith("hosts.nfs_server.host_key: the same key as hosts.load_balancers[0]:")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"validation": {"profile": "efa"}}, "validation.profile"),
        (
            {
                "validation": {"profile": "gb200-nvl72"},
                "pools": {"h100": {**H100_POOL, "gpu_model": "GB200"}},
            },
            "validation.profile",
        ),
        ({"pools": {"h100": {**H100_POOL, "gpu_model": "NVIDIA GB200"}}}, "pools.h100.gpu_model"),
    ],
)
def test_systems_whose_logs_are_judged_and_on_which_no_job_is_launched_are_named(
    changes: dict[str, Any], path: str
) -> None:
    [found] = [each for each in map(str, warnings(load(site(**changes)))) if "does not launch" in each]
    assert found.startswith(f"{path}: busbar judges logs of ")


@pytest.mark.parametrize("validation", [{"profile": "h100-ib-8x400"}, {"profile": "efa", "enabled": False}])
def test_other_systems_and_validations_that_do_not_run_have_no_such_warning(
    validation: dict[str, Any],
) -> None:
    assert not [
        each for each in map(str, warnings(load(site(validation=validation)))) if "does not launch" in each
    ]
