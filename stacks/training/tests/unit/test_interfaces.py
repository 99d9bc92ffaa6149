"""A run over TCP passes only if its data went over the networks of the pool."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.training.package.expectation import expectation
from stacks.training.package.target import targets
from stacks.training.tests.support import cluster, training
from stacks.training.tests.unit.made import GIB, Record, codes, first, record, second, verdict
from stacks.training.tests.unit.test_networks import GLOO, hostdev

SAMPLES = 5
DATA = 6 * SAMPLES * GIB


def counted(hosts: int = 2, **sent: list[int]) -> list[Record]:
    """A whole run whose interfaces have sent this much."""
    resumed = second()
    return [*first(), *resumed[:-1], record("interfaces", hosts=hosts, sent=sent), resumed[-1]]


def judged(records: list[Record]) -> set[str]:
    return codes(verdict(records, interfaces=("net1", "net2")))


def test_a_run_whose_data_went_over_the_networks_passes() -> None:
    records = counted(eth0=[10_000, 900_000], net1=[DATA, DATA], net2=[0, 0])
    found = verdict(records, interfaces=("net1", "net2"))
    assert found.passed
    [check] = [each for each in found.checks if each.name == "interfaces"]
    assert check.reason == f"net1, net2 sent at least {DATA} bytes, others at most 900000"


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (counted(eth0=[DATA, DATA], net1=[0, 5000], net2=[0, 0]), "interfaces.not_used"),
        (counted(eth0=[DATA, DATA], net1=[DATA, DATA], net2=[0, 0]), "interfaces.not_used"),
        (counted(eth0=[0, 0], net1=[0, DATA], net2=[0, 0]), "interfaces.not_used"),
        (counted(eth0=[0, 0], net1=[4 * GIB, DATA], net2=[0, 0]), "interfaces.not_used"),
        (counted(eth0=[DATA, DATA]), "interfaces.not_used"),
        (counted(hosts=1, eth0=[0, 0], net1=[DATA, DATA]), "interfaces.not_counted"),
        ([*first(), *second()], "interfaces.not_counted"),
    ],
    ids=["eth0", "both", "one host not", "a part", "no net1", "one host", "no record"],
)
def test_data_that_went_another_way_are_named(records: list[Record], code: str) -> None:
    assert judged(records) == {code}


def test_a_run_without_networks_or_on_one_worker_is_not_judged_by_its_interfaces() -> None:
    over_eth0 = counted(eth0=[DATA, DATA])
    for found in (verdict(over_eth0), verdict(over_eth0, interfaces=("net1",), nodes=("gpu-1",))):
        assert "interfaces" not in {check.name for check in found.checks}


def expected_of(proof: dict[str, Any]) -> tuple[str, ...]:
    config = training(networks={"h100": [hostdev(count=2)]}, proof=proof)
    [target] = targets(cluster(), config).values()
    return expectation(target, config).interfaces


def test_rdma_does_not_pass_the_kernel_and_is_proved_by_nccl_s_messages_instead() -> None:
    assert expected_of({}) == ()
    assert expected_of(GLOO) == ("net1", "net2")
