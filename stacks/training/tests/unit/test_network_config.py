"""The configuration of networks: the usual errors in their definitions are refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.config import ConfigError
from stacks.training.package.config import load
from stacks.training.tests.support import configured
from stacks.training.tests.unit.test_networks import hostdev, rail


def findings(*networks: dict[str, Any], **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(configured(networks={"h100": list(networks)}, **more))
    return [*map(str, caught.value.findings)]


GID = {"env": {"NCCL_IB_GID_INDEX": "3"}}
NOWHERE = {"repository": None}
# The networks of the pool, what else is configured, and the beginning of the only finding.
REFUSED: list[tuple[list[dict[str, Any]], dict[str, Any], str]] = [
    ([{**rail(0), "master": "mlx5_0"}], {},
     "networks.h100[0].master: 'mlx5_0' is the name of an RDMA device, expected that of its network "
     "interface. Fix: `ls /sys/class/infiniband/mlx5_0/device/net` on a worker"),
    ([{**rail(0), "master": "eth0"}], {},
     "networks.h100[0].master: 'eth0' is the first interface of a host, expected that of a rail"),
    ([{**rail(0), "master": None}], {}, "networks.h100[0].master: missing: type is macvlan"),
    ([hostdev(resource=None)], {}, "networks.h100[0].resource: missing: type is host-device"),
    ([hostdev(mtu=9000)], {}, "networks.h100[0].mtu: is not used: type is host-device. Fix: remove it"),
    ([{**rail(0), "count": 2}], {}, "networks.h100[0].count: is not used: type is macvlan. Fix: remove it"),
    ([rail(0), {**rail(1), "name": "rail0"}], {}, "networks.h100[1].name: 'rail0' is used twice in the pool"),
    ([{**rail(0), "name": "r" * 60}], {}, f"networks.h100[0].name: '{'r' * 60}' is too long: expected at m"),
    ([rail(0), rail(1, "192.168.10.128/25")], {},
     "networks.h100[1].subnet: '192.168.10.128/25' overlaps 192.168.10.0/24, expected a subnet of its own"),
    ([rail(0, "10.1.0.0/24", exclude=["10.1.1.0/28"])], {},
     "networks.h100[0].exclude[0]: '10.1.1.0/28' is not a part of the subnet 10.1.0.0/24"),
    ([rail(0, "10.1.0.0/24", exclude=["10.1.0.0/24", "10.1.0.0/16"])], {},
     "networks.h100[0].exclude[1]: '10.1.0.0/16' is not a part of the subnet 10.1.0.0/24"),
    ([rail(0)], {"pools": ["a100"]}, "networks.h100: is not listed in pools: a100. Fix: list it"),
    ([rail(0)], {"multus": NOWHERE}, "multus.chart: 'rke2-multus' is a name, and multus.repository is not"),
    # Each pod with interfaces of its own has another table of GIDs.
    ([rail(0)], {"proof": GID}, "proof.env.NCCL_IB_GID_INDEX: '3' is another entry in each pod"),
]  # fmt: skip


@pytest.mark.parametrize(("networks", "more", "found"), REFUSED, ids=[row[2][:50] for row in REFUSED])
def test_what_cannot_work_is_refused_with_its_place(
    networks: list[dict[str, Any]], more: dict[str, Any], found: str
) -> None:
    [finding] = findings(*networks, **more)
    assert finding.startswith(found)


@pytest.mark.parametrize(
    "given",
    [
        {"networks": {"h100": [rail(0), rail(1)]}},
        {"networks": {"h100": [rail(0)]}, "multus": {**NOWHERE, "enabled": False}},
        {"multus": NOWHERE},
        {"proof": GID},
    ],
    ids=["rails", "a Multus of another tool", "none installed", "no interfaces of their own"],
)
def test_what_works_is_accepted(given: dict[str, Any]) -> None:
    assert load(configured(**given)).cluster
