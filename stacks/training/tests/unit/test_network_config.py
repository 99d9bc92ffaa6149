"""The configuration of networks: the usual errors in their definitions are refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.config import ConfigError
from stacks.training.package.config import load
from stacks.training.tests.support import configured, training
from stacks.training.tests.unit.test_networks import hostdev, rail


def findings(*networks: dict[str, Any], **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(configured(networks={"h100": list(networks)}, **more))
    return [*map(str, caught.value.findings)]


def test_without_networks_nothing_is_configured_to_be_attached() -> None:
    assert training().networks == {}


def test_rails_with_subnets_of_their_own_are_valid() -> None:
    assert [each.name for each in training(networks={"h100": [rail(0), rail(1)]}).networks["h100"]] == [
        "rail0", "rail1",
    ]  # fmt: skip


def test_an_rdma_device_is_not_a_network_interface() -> None:
    assert findings({**rail(0), "master": "mlx5_0"}) == [
        "networks.h100[0].master: 'mlx5_0' is the name of an RDMA device, expected that of its network "
        "interface. Fix: `ls /sys/class/infiniband/mlx5_0/device/net` on a worker"
    ]


def test_macvlan_on_the_first_interface_of_a_host_is_refused() -> None:
    [found] = findings({**rail(0), "master": "eth0"})
    assert found.startswith("networks.h100[0].master: 'eth0' is the first interface of a host, expected that")
    assert found.endswith("Fix: name the rail's interface; on a VM use host-device")


def test_a_fixed_gid_index_is_refused_where_pods_have_interfaces_of_their_own() -> None:
    gid = {"env": {"NCCL_IB_GID_INDEX": "3"}}
    assert training(proof=gid).proof.env == gid["env"]
    [found] = findings(rail(0), proof=gid)
    assert found.startswith("proof.env.NCCL_IB_GID_INDEX: '3' is another entry in each pod")


@pytest.mark.parametrize(
    ("networks", "found"),
    [
        ([{**rail(0), "master": None}], "[0].master: missing: type is macvlan"),
        ([hostdev(resource=None)], "[0].resource: missing: type is host-device"),
        ([hostdev(mtu=9000)], "[0].mtu: is not used: type is host-device. Fix: remove it"),
        ([{**rail(0), "count": 2}], "[0].count: is not used: type is macvlan. Fix: remove it"),
        ([rail(0), {**rail(1), "name": "rail0"}], "[1].name: 'rail0' is used twice in the pool"),
        (
            [{**rail(0), "name": "r" * 60}],
            f"[0].name: '{'r' * 60}' is too long: expected at most 58 characters",
        ),
        (
            [rail(0), rail(1, "192.168.10.128/25")],
            "[1].subnet: '192.168.10.128/25' overlaps 192.168.10.0/24, expected a subnet of its own per "
            "network",
        ),
        (
            [rail(0, "10.1.0.0/24", exclude=["10.1.1.0/28"])],
            "[0].exclude[0]: '10.1.1.0/28' is not a part of the subnet 10.1.0.0/24",
        ),
        (
            [rail(0, "10.1.0.0/24", exclude=["10.1.0.0/24", "10.1.0.0/16"])],
            "[0].exclude[1]: '10.1.0.0/16' is not a part of the subnet 10.1.0.0/24",
        ),
        ([{**rail(0), "mastre": "x"}], "[0].mastre: unknown key; did you mean 'master'?"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_its_place(networks: list[dict[str, Any]], found: str) -> None:
    assert findings(*networks) == [f"networks.h100{found}"]


def test_networks_of_a_pool_that_is_not_used_are_refused() -> None:
    assert findings(rail(0), pools=["a100"]) == ["networks.h100: is not listed in pools: a100. Fix: list it"]


def test_a_chart_by_its_name_needs_a_repository_only_where_it_is_installed() -> None:
    nowhere = {"repository": None}
    assert findings(rail(0), multus=nowhere) == [
        "multus.chart: 'rke2-multus' is a name, and multus.repository is not set. Fix: set it, or give a "
        "local path or an oci:// URL"
    ]
    assert training(multus=nowhere).multus.repository is None
    assert training(networks={"h100": [rail(0)]}, multus={**nowhere, "enabled": False}).networks
