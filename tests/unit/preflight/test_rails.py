"""Which ports are rails."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.preflight.network_checks import choose_rails
from busbar.preflight.report import Hca
from tests.support.reports import hca
from tests.unit.preflight.samples import REQUIRED


def ports(*described: dict[str, Any]) -> list[Hca]:
    return [Hca.model_validate(port) for port in described]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"link_layer": "Ethernet"}, "link layer is Ethernet, not infiniband"),
        ({"state": "1: DOWN"}, "port is DOWN, not ACTIVE"),
        ({"state": "2: INIT"}, "port is INIT, not ACTIVE"),
        ({"state": ""}, "port is in an unknown state, not ACTIVE"),
        ({"rate": "200 Gb/sec (4X HDR)"}, "rate is 200 Gb/s, not 400"),
        ({"rate": "800 Gb/sec (4X XDR)"}, "rate is 800 Gb/s, not 400"),
        ({"rate": ""}, "rate is 0 Gb/s, not 400"),
    ],
)
def test_a_port_that_is_not_a_rail_has_a_reason(changes: dict[str, Any], reason: str) -> None:
    rails = choose_rails(ports(hca("mlx5_0", **changes)), REQUIRED)
    assert (rails.names, rails.ignored) == ((), {"mlx5_0": reason})


def test_ports_named_by_the_site_are_left_out_whatever_they_are() -> None:
    required = REQUIRED.model_copy(update={"ignore_hcas": ("mlx5_4", "mlx5_bond*")})
    rails = choose_rails(ports(hca("mlx5_0"), hca("mlx5_4"), hca("mlx5_bond_0")), required)
    assert rails.names == ("mlx5_0",)
    assert set(rails.ignored) == {"mlx5_4", "mlx5_bond_0"}


def test_a_second_port_is_a_rail_of_its_own_in_nccls_spelling() -> None:
    assert choose_rails(ports(hca("mlx5_0"), hca("mlx5_0", port=2)), REQUIRED).names == ("mlx5_0", "mlx5_0:2")


def test_roce_rails_are_ethernet() -> None:
    required, both = REQUIRED.model_copy(update={"link_layer": "ethernet"}), [hca("mlx5_0"), hca("mlx5_1")]
    both[0]["link_layer"] = "Ethernet"
    assert choose_rails(ports(*both), required).names == ("mlx5_0",)
