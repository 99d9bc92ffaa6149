"""What the transport between hosts is, and whether it is the expected one on every edge."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from busbar.judge.nccl import Expectation
from busbar.judge.nccl.checks.context import Context
from busbar.judge.nccl.checks.transport import proven_transport, transport
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.reader import Proof
from busbar.judge.nccl.log.records import LogLine
from tests.unit.judge.nccl.tables import MIB, context, printed, row, said, table

DIRECT = {"NET/IB/0/GDRDMA": 32}
LINE = LogLine("", 9, "as printed")
BOTH_ENDS = Counter(send=16, receive=16)


def of(evidence: Evidence, *, given: bool = True, known: int | None = 2, **want: Any) -> Context:
    """A run on two hosts; `known`: nodes of the device list, `given`: whether they were asked for."""
    expectation = {"nodes": 2, "gpus_per_node": 8, "rails": 8, "transport": "gpudirect-rdma", **want}
    run = table([row(512 * MIB)], ranks=16)
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
