"""How the fabric was used: GPUDirect RDMA on every edge, every rail, SHARP, multi-node NVLink."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.judge.nccl import Expectation
from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.setup import gdrdma, mnnvl, rails, sharp
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.records import Banner, LogLine
from tests.unit.judge.nccl.tables import AT, MIB, context, printed, row, said, table

DIRECT = {"NET/IB/0/GDRDMA": 32}
LINE = LogLine("", 9, "as printed")


def of(evidence: Evidence, *, whole: bool = True, **want: Any) -> Context:
    """A run on two hosts of eight rails."""
    run = table([row(512 * MIB)], ranks=16, banner=Banner(512 * MIB, 512 * MIB, 2, "factor", AT))
    run.avg = "1.00" if whole else None
    expectation = {"nodes": 2, "gpus_per_node": 8, "rails": 8, "transport": "gpudirect-rdma", **want}
    return context(Expectation(**expectation), run, evidence=evidence)


@pytest.mark.parametrize(
    ("evidence", "want", "code"),
    [
        (printed(DIRECT), {}, "gdrdma.all_edges"),
        (printed(DIRECT), {"transport": "rdma"}, "gdrdma.not_required"),
        (printed(DIRECT), {"nodes": 1}, "gdrdma.not_required"),
        (Evidence(), {}, "gdrdma.no_edge"),
        (printed({**DIRECT, "NET/IB/1": 4}), {}, "gdrdma.missing"),
        (printed({**DIRECT, "COLLNET/SHARP/1": 4}), {}, "gdrdma.missing"),
        # inside a host there is nothing to read directly
        (printed({**DIRECT, "P2P/CUMEM": 4}), {}, "gdrdma.all_edges"),
        (printed(DIRECT, ring_gdr={"0": LINE}), {}, "gdrdma.ring_without"),
        *(
            (printed(DIRECT, rails={"worker-0": {0, 1}}, without_gdr=said(device)), {}, code)
            for device, code in (
                ("worker-0 1", "gdrdma.contradicted"),
                ("worker-0 ", "gdrdma.contradicted"),
                (" 1", "gdrdma.contradicted"),
                # one that carries nothing
                ("worker-0 2", "gdrdma.all_edges"),
                ("worker-1 1", "gdrdma.all_edges"),
            )
        ),
    ],
)
def test_every_edge_between_hosts_uses_gpudirect(evidence: Evidence, want: dict[str, Any], code: str) -> None:
    assert gdrdma(of(evidence, **want)).code == code


def over(devices: int, hosts: tuple[str, ...] = ("worker-0", "worker-1")) -> Evidence:
    return printed(DIRECT, rails={host: set(range(devices)) for host in hosts})


@pytest.mark.parametrize(
    ("evidence", "want", "code"),
    [
        (over(8), {}, "rails.all"),
        (over(9), {}, "rails.wrong_count"),
        (over(7), {}, "rails.wrong_count"),
        # NCCL merges rails into fewer devices
        (over(4), {"net_devices": 4}, "rails.all"),
        (over(8), {"net_devices": 4}, "rails.wrong_count"),
        (over(8), {"transport": "socket"}, "rails.not_required"),
        (over(8), {"nodes": 1}, "rails.not_required"),
        (over(8), {"rails": None}, "rails.count_unknown"),
        (over(8), {"rails": 0}, "rails.count_unknown"),
        (over(8, ("",)), {}, "rails.no_edge"),
        (over(8, ("worker-0",)), {}, "rails.no_edge"),
        (over(8, ("worker-0.site", "worker-1.site")), {}, "rails.all"),
    ],
)
def test_each_host_sends_over_as_many_devices_as_it_has_rails(
    evidence: Evidence, want: dict[str, Any], code: str
) -> None:
    assert rails(of(evidence, **want)).code == code


def test_an_excerpt_may_leave_rails_out_but_cannot_add_any() -> None:
    assert rails(of(over(7), whole=False)).code == "rails.excerpt"
    assert rails(of(over(9), whole=False)).code == "rails.wrong_count"
    for part, nothing in (("banner", None), ("ranks", [])):
        cut = of(over(7))
        setattr(cut.judged[0].preamble, part, nothing)
        assert rails(cut).code == "rails.excerpt"


@pytest.mark.parametrize(
    ("evidence", "want", "code"),
    [
        (printed({"COLLNET/SHARP/0/GDRDMA": 8}), {}, "sharp.no_evidence"),
        (printed(DIRECT, algorithms=said("CollNetDirect")), {}, "sharp.used"),
        (printed(DIRECT, algorithms=said("RING")), {}, "sharp.no_evidence"),
        (
            printed({"COLLNET/SHARP/0/GDRDMA": 8}, warnings=said("Cannot initialize CollNet, using p2p")),
            {},
            "sharp.fallback",
        ),
        (printed(DIRECT), {"algorithm": "ring"}, "sharp.not_required"),
        (printed(DIRECT), {"nodes": 1}, "sharp.not_required"),
    ],
)
def test_sharp_is_proved_by_nccls_choice_and_by_nothing_else(
    evidence: Evidence, want: dict[str, Any], code: str
) -> None:
    assert sharp(of(evidence, **{"algorithm": "sharp", **want})).code == code


@pytest.mark.parametrize(
    ("evidence", "want", "code"),
    [
        (printed({"P2P/MNNVL": 8}), {}, "mnnvl.used"),
        (Evidence(mnnvl={"1": LINE}), {}, "mnnvl.used"),
        (Evidence(), {}, "mnnvl.no_evidence"),
        (printed({"P2P/CUMEM": 8}), {}, "mnnvl.no_evidence"),
        (printed({"P2P/MNNVL": 8, **DIRECT}), {}, "mnnvl.net_inside_domain"),
        # between two domains a network is needed
        (printed({"P2P/MNNVL": 8, **DIRECT}), {"nodes": 4}, "mnnvl.used"),
        (printed({"P2P/MNNVL": 8}, warnings=said("MNNVL is not working")), {}, "mnnvl.not_working"),
        (printed({"P2P/MNNVL": 8}, warnings=said("MNNVL 1")), {}, "mnnvl.used"),
        (Evidence(), {"nodes_per_domain": 1}, "mnnvl.not_required"),
        (Evidence(), {"nodes": None}, "mnnvl.not_required"),
        (Evidence(), {"nodes": 1}, "mnnvl.not_required"),
    ],
)
def test_hosts_of_one_nvlink_domain_prove_that_they_use_it(
    evidence: Evidence, want: dict[str, Any], code: str
) -> None:
    assert mnnvl(of(evidence, **{"nodes_per_domain": 2, **want})).code == code
