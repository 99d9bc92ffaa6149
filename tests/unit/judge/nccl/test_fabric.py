"""How the fabric was used: GPUDirect RDMA on every edge, every rail, SHARP, multi-node NVLink."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.judge.nccl import Expectation
from busbar.judge.nccl.checks.codes import Code
from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.fabric import gdrdma, mnnvl, rails, sharp
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.records import Banner, LogLine
from tests.unit.judge.nccl.tables import MIB, context, printed, row, said, table

DIRECT = {"NET/IB/0/GDRDMA": 32}
LINE = LogLine("", 9, "as printed")


def of(evidence: Evidence, *, whole: bool = True, **want: Any) -> Context:
    """A run on two hosts of eight rails."""
    run = table([row(512 * MIB)], ranks=16, banner=Banner(512 * MIB, 512 * MIB, 2, "factor", 1))
    run.avg = "1.00" if whole else None
    expectation = {"nodes": 2, "gpus_per_node": 8, "rails": 8, "transport": "gpudirect-rdma", **want}
    return context(Expectation(**expectation), run, evidence=evidence)


@pytest.mark.parametrize(
    ("evidence", "want", "code"),
    [
        (printed(DIRECT), {}, Code.GDRDMA_ALL_EDGES),
        (printed(DIRECT), {"transport": "rdma"}, Code.GDRDMA_NOT_REQUIRED),
        (printed(DIRECT), {"nodes": 1}, Code.GDRDMA_NOT_REQUIRED),
        (Evidence(), {}, Code.GDRDMA_NO_EDGE),
        (printed({**DIRECT, "NET/IB/1": 4}), {}, Code.GDRDMA_MISSING),
        (printed({**DIRECT, "COLLNET/SHARP/1": 4}), {}, Code.GDRDMA_MISSING),
        # inside a host there is nothing to read directly
        (printed({**DIRECT, "P2P/CUMEM": 4}), {}, Code.GDRDMA_ALL_EDGES),
        (printed(DIRECT, ring_gdr={"0": LINE}), {}, Code.GDRDMA_RING_WITHOUT),
        *(
            (printed(DIRECT, rails={"worker-0": {0, 1}}, without_gdr=said(device)), {}, code)
            for device, code in (
                ("worker-0 1", Code.GDRDMA_CONTRADICTED),
                ("worker-0 ", Code.GDRDMA_CONTRADICTED),
                (" 1", Code.GDRDMA_CONTRADICTED),
                # one that carries nothing
                ("worker-0 2", Code.GDRDMA_ALL_EDGES),
                ("worker-1 1", Code.GDRDMA_ALL_EDGES),
            )
        ),
    ],
)
def test_every_edge_between_hosts_uses_gpudirect(
    evidence: Evidence, want: dict[str, Any], code: Code
) -> None:
    assert gdrdma(of(evidence, **want)).code == code


def test_the_edges_without_gpudirect_are_counted_and_the_first_is_shown() -> None:
    check = gdrdma(of(printed({**DIRECT, "NET/IB/1": 4})))
    assert (check.reason, check.line) == ("4 of 36 edges lack /GDRDMA", 2)
    assert gdrdma(of(printed(DIRECT))).reason == "/GDRDMA on 32 of 32 edges"


def over(devices: int, hosts: tuple[str, ...] = ("worker-0", "worker-1")) -> Evidence:
    return printed(DIRECT, rails={host: set(range(devices)) for host in hosts})


@pytest.mark.parametrize(
    ("evidence", "want", "code"),
    [
        (over(8), {}, Code.RAILS_ALL),
        (over(9), {}, Code.RAILS_WRONG_COUNT),
        (over(7), {}, Code.RAILS_WRONG_COUNT),
        # NCCL merges rails into fewer devices
        (over(4), {"net_devices": 4}, Code.RAILS_ALL),
        (over(8), {"net_devices": 4}, Code.RAILS_WRONG_COUNT),
        (over(8), {"transport": "socket"}, Code.RAILS_NOT_REQUIRED),
        (over(8), {"nodes": 1}, Code.RAILS_NOT_REQUIRED),
        (over(8), {"rails": None}, Code.RAILS_COUNT_UNKNOWN),
        (over(8), {"rails": 0}, Code.RAILS_COUNT_UNKNOWN),
        (over(8, ("",)), {}, Code.RAILS_NO_EDGE),
        (over(8, ("worker-0",)), {}, Code.RAILS_NO_EDGE),
        (over(8, ("worker-0.site", "worker-1.site")), {}, Code.RAILS_ALL),
    ],
)
def test_each_host_sends_over_as_many_devices_as_it_has_rails(
    evidence: Evidence, want: dict[str, Any], code: Code
) -> None:
    assert rails(of(evidence, **want)).code == code


def test_an_excerpt_may_leave_rails_out_but_cannot_add_any() -> None:
    assert rails(of(over(7), whole=False)).code == Code.RAILS_EXCERPT
    assert rails(of(over(9), whole=False)).code == Code.RAILS_WRONG_COUNT
    for part, nothing in (("banner", None), ("ranks", [])):
        cut = of(over(7))
        setattr(cut.judged[0].preamble, part, nothing)
        assert rails(cut).code == Code.RAILS_EXCERPT


@pytest.mark.parametrize(
    ("evidence", "want", "code"),
    [
        (printed({"COLLNET/SHARP/0/GDRDMA": 8}), {}, Code.SHARP_NO_EVIDENCE),
        (printed(DIRECT, algorithms=said("CollNetDirect")), {}, Code.SHARP_USED),
        (printed(DIRECT, algorithms=said("RING")), {}, Code.SHARP_NO_EVIDENCE),
        (
            printed({"COLLNET/SHARP/0/GDRDMA": 8}, warnings=said("Cannot initialize CollNet, using p2p")),
            {},
            Code.SHARP_FALLBACK,
        ),
        (printed(DIRECT), {"algorithm": "ring"}, Code.SHARP_NOT_REQUIRED),
        (printed(DIRECT), {"nodes": 1}, Code.SHARP_NOT_REQUIRED),
    ],
)
def test_sharp_is_proved_by_nccls_choice_and_by_nothing_else(
    evidence: Evidence, want: dict[str, Any], code: Code
) -> None:
    assert sharp(of(evidence, **{"algorithm": "sharp", **want})).code == code


@pytest.mark.parametrize(
    ("evidence", "want", "code"),
    [
        (printed({"P2P/MNNVL": 8}), {}, Code.MNNVL_USED),
        (Evidence(mnnvl={"1": LINE}), {}, Code.MNNVL_USED),
        (Evidence(), {}, Code.MNNVL_NO_EVIDENCE),
        (printed({"P2P/CUMEM": 8}), {}, Code.MNNVL_NO_EVIDENCE),
        (printed({"P2P/MNNVL": 8, **DIRECT}), {}, Code.MNNVL_NET_INSIDE_DOMAIN),
        # between two domains a network is needed
        (printed({"P2P/MNNVL": 8, **DIRECT}), {"nodes": 4}, Code.MNNVL_USED),
        (printed({"P2P/MNNVL": 8}, warnings=said("MNNVL is not working")), {}, Code.MNNVL_NOT_WORKING),
        (printed({"P2P/MNNVL": 8}, warnings=said("MNNVL 1")), {}, Code.MNNVL_USED),
        (Evidence(), {"nodes_per_domain": 1}, Code.MNNVL_NOT_REQUIRED),
        (Evidence(), {"nodes": None}, Code.MNNVL_NOT_REQUIRED),
        (Evidence(), {"nodes": 1}, Code.MNNVL_NOT_REQUIRED),
    ],
)
def test_hosts_of_one_nvlink_domain_prove_that_they_use_it(
    evidence: Evidence, want: dict[str, Any], code: Code
) -> None:
    assert mnnvl(of(evidence, **{"nodes_per_domain": 2, **want})).code == code
