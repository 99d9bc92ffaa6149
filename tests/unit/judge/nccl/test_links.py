"""Whether the printed edges are all that the collective has: each channel, host and direction."""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pytest

from busbar.judge.nccl import Expectation, read_lines
from busbar.judge.nccl.checks.transport import incomplete
from busbar.judge.nccl.log.evidence import EdgeCounts, End, Evidence, Links, Transport, pack
from busbar.judge.nccl.log.records import LogLine
from tests.unit.judge.nccl.tables import MIB, context, row, said, table

Link = tuple[int, int, int]
# two hosts of two ranks, rings 0-1-2-3 on two channels
RING = [(0, 1, 2), (0, 3, 0), (1, 1, 2), (1, 3, 0)]
RINGS = {0: array("i", range(4)), 1: array("i", range(4))}


def printed(links: Iterable[Link], per_host: int = 2, connection: int = 0, **facts: Any) -> Evidence:
    """Each link as its sender and its receiver print it."""
    evidence = Evidence(**facts)
    for channel, source, target in links:
        for rank, sent in ((source, True), (target, False)):
            say(evidence.links, f"worker-{rank // per_host}", (channel, source, target), sent, connection)
    return evidence


def say(links: Links, host: str, link: Link, sent: bool, connection: int = 0) -> None:
    """One end of a link, as a process on HOST prints it."""
    channel, source, target = link
    text = f"{channel}/{connection}: {source} -> {target}".encode()
    links.add((host, 0), text, pack(*link), sent, first=connection == 0)


def missing(evidence: Evidence, ranks: int = 4, per_host: int = 2, **want: Any) -> str | None:
    """What the edges lack; None where they are complete."""
    run = table([row(512 * MIB)], ranks)
    for rank in run.preamble.ranks:
        object.__setattr__(rank, "host", f"worker-{rank.rank // per_host}.site")
    found = incomplete(context(Expectation(**want), run, evidence=evidence))
    if found is None:
        return None
    assert (found.status, found.code) == ("unknown", "transport.edges_missing")
    return found.reason.removeprefix("edges are missing: ")


def refusal(evidence: Evidence) -> tuple[str, str] | None:
    run = table([row(512 * MIB)], 16)
    found = incomplete(context(Expectation(), run, evidence=evidence))
    return (found.code, found.reason) if found else None


LINE = LogLine("x", 3, "x")
FACTS: dict[str, Any] = {
    **{each.name: {"x": LINE} for each in fields(Evidence) if each.type in ("Texts", "Counts")},
    **{kind: {"a"} for kind in ("hosts", "lost")},
}
PART = Evidence(
    **FACTS,
    edges={"SHM": EdgeCounts(Transport("SHM", "", None, False, "SHM"), LINE, 2)},
    net_devices={"a": {0}},
    switch_devices={"a": {1}},
    inside={"a": {"P2P"}},
    net_directions=Counter(send=1),
    links=Links(7, {1}, {2}, {(("a", 9), 0)}, Counter({0: 1}), overflow=True),
    hcas_of_host={"a": ("mlx5_0",)},
    facts={"NCCL_IB_TC": {"106": {"a"}}},
    told=1,
    hca_links={"a": {(0, "mlx5_0", "IB")}},
    algorithm_sizes={"AllReduce RING": 8},
    initialized={2: {0}},
    destroyed={2: {1}},
    rings={0: array("l", [0, 1])},
    parents={0: array("l", [1])},
    speaks=True,
)


def test_what_was_printed_in_parts_of_a_log_is_whole_when_they_are_put_together() -> None:
    assert [each.name for each in fields(PART) if not getattr(PART, each.name)] == []
    assert Evidence.merged([Evidence(), PART, Evidence()]) == PART
    twice = Evidence.merged([PART, PART])
    assert (twice.edges["SHM"].count, twice.net_directions["send"], twice.links.difference) == (4, 2, 14)
    assert (twice.links.balance[0], twice.initialized, twice.hosts) == (2, PART.initialized, PART.hosts)
    first, second = (LogLine(value, line, value) for line, value in enumerate("yx", 1))
    other = Evidence(warnings={"y": first, "x": second}, hcas_of_host={"a": ("mlx5_1",)})
    both = Evidence.merged([PART, other])
    assert (list(both.warnings.values()), both.hcas_of_host) == ([first, second], {"a": ()})


@pytest.mark.parametrize(
    ("edge", "label"),
    [
        (
            "6[6] -> 15[7] [receive] via NET/AWS Libfabric/3(8)/GDRDMA/Shared",
            "NET/AWS Libfabric/N/GDRDMA/Shared",
        ),
        # quoted at the end of a sentence
        ("0[0] -> 8[0] [send] via NET/IB/0/GDRDMA.", "NET/IB/N/GDRDMA"),
        ("CollNet 00/0 : 3 [send] via COLLNET/SHARP/0/GDRDMA(PCI)", "COLLNET/SHARP/N/GDRDMA(PCI)"),
        ("Ring 02 : 0 -> 1 via P2P/IPC/read comm 0x7f nRanks 16", "P2P/IPC/read"),
    ],
)
def test_an_edge_of_every_form_is_read(edge: str, label: str) -> None:
    text = edge if ":" in edge else f"Channel 07/1 : {edge}"
    edges = read_lines([f"worker-0:40:90 [3] NCCL INFO {text}"]).evidence.edges
    assert {name: counts.count for name, counts in edges.items()} == {label: 1}


def test_rings_whose_edges_are_all_there_are_complete() -> None:
    assert missing(printed(RING)) is None
    facts: dict[str, Any] = {"channels": said("2"), "connected": said("all rings"), "rings": RINGS}
    assert missing(printed(RING, **facts)) is None


def test_more_edges_than_can_be_compared_are_no_proof() -> None:
    assert missing(Evidence(links=Links(overflow=True))) == "more edges than can be compared"


def test_an_edge_that_only_one_end_printed_shows_that_lines_are_missing() -> None:
    evidence = printed(RING)
    say(evidence.links, "worker-0", (2, 1, 2), sent=True)
    found = refusal(evidence)
    assert found is not None and found[0] == "transport.one_sided"


OWN = {(("worker-0", 103), 3), (("worker-1", 109), 9)}


@pytest.mark.parametrize(
    ("ends", "seen", "reason"),
    [
        (
            {(("worker-0", 0), 16)},
            [],
            "worker-0 prints an edge of rank 16, which the device list does not have",
        ),
        ({(("", 0), 16)}, [], "a process prints an edge of rank 16, which the device list does not have"),
        (
            {(("worker-1", 0), 3)},
            [],
            "worker-1 prints an edge of rank 3, which the device list has on worker-0",
        ),
        (
            {*OWN, (("worker-0", 103), 5)},
            [],
            "pid 103 on worker-0 prints an edge of rank 5, which the device list has elsewhere",
        ),
        # a process prints edges of its own ranks; a message without its host may be of any
        (OWN, [], None),
        ({(("", 0), 3), (("worker-0.site", 0), 1), (("worker-1", 0), 9)}, [], None),
        (set(), [(0, 3, 16)], "an edge of channel 0 names a rank that the device list does not have"),
        (set(), [(5, 16, 3)], "an edge of channel 5 names a rank that the device list does not have"),
    ],
)
def test_an_edge_of_a_rank_that_is_not_listed_or_listed_elsewhere_is_misplaced(
    ends: set[End], seen: list[Link], reason: str | None
) -> None:
    both = {pack(*link) for link in seen}
    links = Links(ends=ends, sent=both, received=both)
    expected = ("transport.misplaced_edge", reason) if reason else None
    assert refusal(Evidence(links=links)) == expected


def test_without_a_device_list_nothing_can_be_missing() -> None:
    assert missing(printed(RING[:1]), ranks=0) is None


@pytest.mark.parametrize(
    ("want", "compared"),
    [
        ({"nodes": 4, "gpus_per_node": 2, "nodes_per_domain": 2}, False),
        ({"nodes": 4, "gpus_per_node": 2}, True),
        ({}, True),
    ],
)
def test_channels_between_racks_do_not_reach_every_host(want: dict[str, Any], compared: bool) -> None:
    assert (missing(printed(RING[:1]), **want) is not None) == compared


def test_ranks_in_pairs_have_no_channels_and_the_first_host_that_takes_no_part_is_named() -> None:
    pairs = [(0, 0, 2), (0, 2, 0)]
    assert missing(printed(pairs, connection=1)) is None
    assert missing(printed(pairs, connection=1), ranks=8) == "worker-2 has none"


@pytest.mark.parametrize(
    ("links", "facts", "reason"),
    [
        (RING[:2], {"channels": said("2")}, "worker-0 has no sending edge on 1 of 2 channels (1)"),
        (
            [link for link in RING if link != (1, 3, 0)],
            {},
            "worker-0 has no receiving edge on 1 of 2 channels (1)",
        ),
        ([*RING[:2], (2, 1, 2), (2, 3, 0)], {}, "worker-0 has no sending edge on 1 of 3 channels (1)"),
        (RING, {"channels": said("2") | said("4")}, "processes count 2 and 4 channels"),
        (
            RING,
            {"channels": said("12")},
            "worker-0 has no sending edge on 10 of 12 channels (2, 3, 4, 5, 6, 7, 8, 9)",
        ),
    ],
)
def test_every_host_sends_and_receives_on_every_channel(
    links: list[Link], facts: dict[str, Any], reason: str
) -> None:
    assert missing(printed(links, **facts)) == reason


@pytest.mark.parametrize(
    ("facts", "complete"),
    [
        ({"connected": said("NVLS tree"), "nvls_channels": said("2")}, True),
        ({"connected": said("NVLS tree") | said("all rings"), "nvls_channels": said("2")}, False),
        ({"connected": said("NVLS tree"), "nvls_channels": said("2") | said("4")}, False),
        ({"connected": said("NVLS tree")}, False),
        ({"nvls_channels": said("2")}, False),
    ],
)
def test_where_only_nvls_was_connected_its_channels_are_all_that_there_are(
    facts: dict[str, Any], complete: bool
) -> None:
    assert (missing(printed(RING, channels=said("16"), **facts)) is None) == complete


# three hosts of one rank each: 0 sends to both others, and both send to 0
STAR = [(0, 0, 1), (0, 1, 0), (0, 0, 2), (0, 2, 0)]


def test_every_edge_of_a_printed_ring_that_was_connected_is_there() -> None:
    ring, forward = {0: array("i", [0, 1, 2])}, [(0, 0, 1), (0, 1, 2), (0, 2, 0)]
    facts: dict[str, Any] = {"rings": ring, "connected": said("all rings")}
    assert missing(printed(forward, 1, **facts), 3, 1) is None
    assert missing(printed(STAR, 1, **facts), 3, 1) == "channel 0 from rank 1 to 2, which NCCL planned"
    assert missing(printed(STAR, 1, rings=ring), 3, 1) is None
    # long rings are printed cut
    cut = {0: array("i", [0, 1])}
    assert missing(printed(STAR, 1, **{**facts, "rings": cut}), 3, 1) is None


def test_every_edge_of_a_printed_tree_that_was_connected_is_there_both_ways() -> None:
    parents = {rank: array("i", [0 if rank else -1]) for rank in range(3)}
    facts: dict[str, Any] = {"parents": parents, "connected": said("all trees")}
    assert missing(printed(STAR, 1, **facts), 3, 1) is None
    without = [(0, 1, 2) if link == (0, 0, 2) else link for link in STAR]
    assert missing(printed(without, 1, **facts), 3, 1) == "channel 0 from rank 0 to 2, which NCCL planned"
    assert missing(printed(without, 1, parents=parents), 3, 1) is None
    # a rank of another program's tree
    facts["parents"] = {**parents, 7: array("i", [0])}
    assert missing(printed(STAR, 1, **facts), 3, 1) is None


def test_an_edge_that_is_in_no_ring_has_its_way_back() -> None:
    tree = [(0, 0, 2), (0, 2, 0)]
    assert missing(printed([*RING, *tree], rings=RINGS)) is None
    reason = "channel 0 from rank 2 to 0, the way back of another edge"
    assert missing(printed([*RING, *tree[:1]], rings=RINGS)) == reason
    assert missing(printed([*RING, *tree[:1]])) is None
    # PAT, with one rank per host, goes one way too
    forward = [(0, 0, 1), (0, 1, 0), (0, 1, 2), (0, 2, 0)]
    assert missing(printed(forward, 1, rings={0: array("i", [2, 1, 0])}), 3, 1) is None


NVLS = [(0, 0, 2), (0, 2, 0), (0, 1, 3), (0, 3, 1)]


@pytest.mark.parametrize(
    ("links", "facts", "reason"),
    [
        (NVLS, {}, None),
        (NVLS[:2], {}, "rank 1 on channel 0, though it is a head of NVLS trees"),
        (NVLS[:3], {}, "rank 1 on channel 0, though it is a head of NVLS trees"),
        ([*NVLS[:2], NVLS[3]], {}, "rank 1 on channel 0, though it is a head of NVLS trees"),
        (NVLS[:2], {"heads": said("1")}, None),
        (NVLS[:2], {"connected": {}}, None),
        (NVLS[:2], {"nvls_channels": said("1") | said("2")}, None),
        (NVLS[:2], {"nvls_channels": {}}, None),
    ],
)
def test_where_every_gpu_is_a_head_of_nvls_trees_each_has_edges_both_ways(
    links: list[Link], facts: dict[str, Any], reason: str | None
) -> None:
    evidence = {
        "connected": said("NVLS tree") | said("all rings"),
        "heads": said("2"),
        "nvls_channels": said("1"),
        **facts,
    }
    assert missing(printed(links, **evidence)) == reason
