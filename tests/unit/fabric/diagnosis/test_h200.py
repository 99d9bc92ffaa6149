"""Three runs of a stage that ran on a real GPU: one H200, nccl-tests 2.19.6, NCCL 2.32.3, over TCP.

Its four nodes are namespaces of one machine, and `tc` has limited the interface of gpu-3 to 3 Gbit/s. Lines
that say nothing about the result are left out.
"""

from pathlib import Path

from busbar.fabric.diagnosis.stages import StageLog
from busbar.fabric.localise.groups import Group, Known
from busbar.fabric.localise.score import score

LOG = Path(__file__).with_name("h200-pairs.log")
PAIRS = (("gpu-1", "gpu-2"), ("gpu-3", "gpu-4"), ("gpu-2", "gpu-4"))
EXPECTED_GBPS = 1.8


def test_a_node_with_a_slow_link_is_the_one_to_be_tried_again_and_the_others_are_healthy() -> None:
    groups = [Group("A", number, "in_group", pair) for number, pair in zip((1, 1, 2), PAIRS, strict=True)]
    nodes = [f"gpu-{number}" for number in range(1, 5)]
    by_name = {each.name: each for each in groups}
    log = StageLog(by_name.get, nodes, 1, 64 << 20, lambda missing: dict.fromkeys(missing, "it is missing"))
    for line in LOG.read_bytes().splitlines(keepends=True):
        log.line(line)
    assert (log.absent, len(log.results)) == ({}, 3)
    known = Known({each: log.results[each].busbw for each in groups}, {"in_group": EXPECTED_GBPS})
    judged = score(known, {})
    assert (judged.undecided, set(judged.healthy)) == (("gpu-3",), {"gpu-1", "gpu-2", "gpu-4"})
