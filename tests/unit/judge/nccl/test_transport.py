"""The transport between hosts is proven on every edge, with GPUDirect RDMA, rails, SHARP and NVLink."""

from collections import Counter
from typing import Any

import pytest

from busbar.judge.nccl import Expectation
from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.setup import gdrdma, mnnvl, rails, sharp
from busbar.judge.nccl.checks.transport import proven_transport, transport
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.reader import Proof
from busbar.judge.nccl.log.records import Banner
from tests.unit.judge.nccl.tables import AT, LINE, MIB, context, printed, row, said, table

DIRECT = {"NET/IB/0/GDRDMA": 32}
BOTH_ENDS = Counter(send=16, receive=16)


def of(
    evidence: Evidence, *, given: bool = True, known: int | None = 2, whole: bool = True, **want: Any
) -> Context:
    """A run on two hosts; `known`: nodes of the device list, `given`: whether they were asked for."""
    expectation = {"nodes": 2, "gpus_per_node": 8, "rails": 8, "transport": "gpudirect-rdma", **want}
    run = table([row(512 * MIB)], ranks=16, banner=Banner(512 * MIB, 512 * MIB, 2, "factor", AT))
    run.avg = "1.00" if whole else None
    return context(Expectation(**expectation), run, evidence=evidence, nodes=known, nodes_given=given)


@pytest.mark.parametrize(
    ("evidence", "nodes", "found"),
    [
        (printed(DIRECT), 2, "gpudirect-rdma"),
        (printed({**DIRECT, "NET/IBext/0": 2}), 2, "rdma"),
        (printed({"NET/AWS Libfabric/0": 2}), 2, "rdma"),
        (printed({"NET/Socket/0": 2}), 2, "socket"),
        (printed({"NET/FasTrak/0": 2}), 2, "tcp-device-memory"),
        (printed({**DIRECT, "NET/Socket/0": 2}), 2, "mixed"),
        (printed({"NET/FasTrak/0": 2, "NET/Socket/0": 2}), 2, "mixed"),
        (printed({**DIRECT, "NET/MyOwn/0": 2}), 2, "mixed"),
        (printed({"NET/MyOwn/0": 2}), 2, "unknown"),
        (printed({"P2P/MNNVL": 2}), 2, "mnnvl"),
        (Evidence(mnnvl={"1": LINE}), 2, "mnnvl"),
        (Evidence(networks=said("Socket")), 2, "socket"),
        (Evidence(networks=said("Socket") | said("IB")), 2, "unknown"),
        (Evidence(networks=said("IB")), 2, "unknown"),
        # what a single host prints of a network, it does not use
        (printed({"P2P/MNNVL": 2}, mnnvl={"1": LINE}, networks=said("Socket")), 1, "single-node"),
        (Evidence(networks=said("Socket")), None, "unknown"),
    ],
)
def test_the_transport_between_hosts_is_what_the_edges_prove(
    evidence: Evidence, nodes: int | None, found: str
) -> None:
    for known, asked in ((nodes, None), (None, nodes)):
        assert proven_transport(of(evidence, known=known, nodes=asked, transport=None)) == found


def test_tables_over_different_transports_are_mixed_and_an_unknown_one_makes_all_unknown() -> None:
    found = of(Evidence(), transport=None)
    run = found.judged[0]
    found.log.runs = [run, table(run.rows, 16)]
    found.tables["all_reduce"] = found.log.runs
    for second, both in ((DIRECT, "gpudirect-rdma"), ({"NET/Socket/0": 1}, "mixed"), ({}, "unknown")):
        found.__dict__.pop("each", None)
        found.log.proofs = [Proof(printed(edges), Evidence()) for edges in (DIRECT, second)]
        assert proven_transport(found) == both


@pytest.mark.parametrize(
    ("evidence", "want", "status", "code"),
    [
        (printed(DIRECT, net_directions=BOTH_ENDS), {}, "pass", "transport.as_expected"),
        (printed(DIRECT, net_directions=BOTH_ENDS), {"networks": ["IB"]}, "pass", "transport.as_expected"),
        (printed({"NET/IB_v8/0": 2}), {"networks": ["IB"]}, "fail", "transport.other_edge"),
        (printed({"NET/IBext/0": 2}), {"networks": ["IB"]}, "fail", "transport.other_edge"),
        (printed({"NET/IBext_v8/0": 2}), {"networks": ["IBext"]}, "pass", "transport.as_expected"),
        (printed({"NET/UCX/0": 2}), {"networks": ["IB", "IBext"]}, "fail", "transport.other_edge"),
        (printed({"NET/MyOwn/0": 2}), {}, "fail", "transport.other_edge"),
        (printed({**DIRECT, "NET/Socket/0": 1}), {}, "fail", "transport.socket_edge"),
        (printed(DIRECT, networks=said("Socket")), {}, "fail", "transport.socket_network"),
        (printed({"NET/Socket/0": 1}), {"transport": "socket"}, "pass", "transport.as_expected"),
        (printed(DIRECT), {"transport": "socket"}, "fail", "transport.other_edge"),
        (Evidence(), {}, "unknown", "transport.no_evidence"),
        (Evidence(networks=said("IB")), {}, "unknown", "transport.no_edge"),
        (Evidence(networks=said("Socket")), {"transport": "socket"}, "unknown", "transport.no_edge"),
        (printed({"P2P/CUMEM": 8}), {}, "unknown", "transport.no_edge"),
        (printed(DIRECT, net_directions=Counter(send=16, receive=15)), {}, "unknown", "transport.one_sided"),
        (printed(DIRECT, unread_edges=said("via NET/?")), {}, "unknown", "transport.unread_edge"),
        (printed(DIRECT, lost={"edges"}), {}, "unknown", "transport.unread_edge"),
        (printed(DIRECT, lost={"warnings"}), {}, "pass", "transport.as_expected"),
        (printed(DIRECT, unread_messages=said("NCCL IN")), {}, "unknown", "transport.unread_message"),
        (printed(DIRECT), {"nodes": None}, "unknown", "transport.nodes_unknown"),
        (printed({"NET/Socket/0": 1}), {"nodes": None}, "unknown", "transport.socket_edge"),
    ],
)
def test_every_edge_between_hosts_is_of_the_expected_transport(
    evidence: Evidence, want: dict[str, Any], status: str, code: str
) -> None:
    check = transport(of(evidence, **want))
    assert (check.status, check.code) == (status, code), check.reason


@pytest.mark.parametrize(
    ("evidence", "status", "code"),
    [
        (printed(DIRECT), "pass", "transport.as_expected"),
        (printed({"NET/Socket/0": 1}), "fail", "transport.unexpected"),
        (printed({"NET/FasTrak/0": 1}), "fail", "transport.unexpected"),
        (printed({**DIRECT, "NET/Socket/0": 1}), "fail", "transport.unexpected"),
        (Evidence(networks=said("IB")), "unknown", "transport.no_edge"),
    ],
)
def test_where_no_transport_is_expected_only_rdma_or_nvlink_passes(
    evidence: Evidence, status: str, code: str
) -> None:
    check = transport(of(evidence, transport=None))
    assert (check.status, check.code) == (status, code)


def test_edges_that_no_listed_process_printed_prove_nothing_and_may_be_tcp() -> None:
    for loose, code in (
        ({}, "transport.as_expected"),
        (DIRECT, "transport.unbound_edge"),
        ({"NET/Socket/0": 1}, "transport.socket_edge"),
    ):
        found = of(Evidence())
        found.proof = Proof(printed(DIRECT), printed(loose))
        found.expectation = found.expectation.model_copy(update={"nodes_per_domain": 1})
        found.judged[0].preamble.ranks.clear()
        assert transport(found).code == code


@pytest.mark.parametrize(
    ("evidence", "given", "want", "status", "code"),
    [
        (Evidence(), True, {}, "not-required", "transport.not_required"),
        (Evidence(), False, {}, "unknown", "transport.single_node"),
        (Evidence(), False, {"rails": None}, "not-required", "transport.not_required"),
        (Evidence(), False, {"rails": 0}, "not-required", "transport.not_required"),
        (printed(DIRECT), True, {}, "fail", "transport.net_inside_node"),
        # a rack: NET edges inside it are a finding of mnnvl
        (
            printed(DIRECT),
            True,
            {"nodes": 2, "nodes_per_domain": 2},
            "not-required",
            "transport.not_required",
        ),
    ],
)
def test_on_one_host_nothing_crosses_the_fabric(
    evidence: Evidence, given: bool, want: dict[str, Any], status: str, code: str
) -> None:
    check = transport(of(evidence, given=given, **{"nodes": 1, **want}))
    assert (check.status, check.code) == (status, code), check.reason


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
            (printed(DIRECT, net_devices={"worker-0": {0, 1}}, without_gdr=said(device)), {}, code)
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
    return printed(DIRECT, net_devices={host: set(range(devices)) for host in hosts})


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
