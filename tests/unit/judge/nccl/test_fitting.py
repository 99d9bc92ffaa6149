"""A log that is judged without a profile: which one fits is said, and how to ask for it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl.checks.context import build as build_context
from busbar.judge.nccl.checks.setup import fitting
from busbar.judge.nccl.expected.system import is_gpu
from tests.support.cli import busbar
from tests.unit.judge.nccl.logs import Made
from tests.unit.judge.nccl.reading import Expectation, judge, profiles, read_lines

NAMES = {
    "A40": "NVIDIA A40",
    "A100": "NVIDIA A100-SXM4-80GB",
    "H100": "NVIDIA H100 80GB HBM3",
    "B200": "NVIDIA B200",
}


def fits(made: Made) -> list[str]:
    return fitting(build_context(read_lines(made.lines()), Expectation()))


@pytest.mark.parametrize(
    ("gpu", "network", "said", "first"),
    [
        ("H100", "IB", "NCCL_ALGO set by environment to RING", "h100-ib-8x400"),
        ("H100", "IB", "", "h100-coreweave"),
        ("B200", "IBext", "", "b200-ib-8x400"),
        ("A100", "IB", "", "a100-ib-8x200"),
        ("H100", "AWS Libfabric", "", "efa"),
    ],
)
def test_the_profile_that_fits_is_named(gpu: str, network: str, said: str, first: str) -> None:
    made = Made()
    made.gpu, made.network = NAMES[gpu], network
    made.info = [f"worker-0:40:90 [0] NCCL INFO {said}"] if said else []
    assert fits(made)[0] == first
    verdict = judge(made.lines(), Expectation())
    command = f"busbar nccl check LOG --profile {first} --expect-nodes 2"
    fixes = {c.name: c.fix for c in verdict.checks if c.status == "unknown"}
    assert fixes["rails"].startswith(command) and fixes["busbw"].startswith(command)


def test_where_none_fits_the_list_of_profiles_is() -> None:
    made = Made()
    made.gpu = "NVIDIA GeForce RTX 4090"
    assert fits(made) == []
    assert (
        "Fix: pass --profile (busbar nccl profiles lists them)"
        in judge(made.lines(), Expectation()).reasons[0]
    )
    assert not judge(made.lines(), Expectation(profile="h100-ib-8x400", nodes=2)).check("busbw").fix


@settings(max_examples=15)
@given(
    gpu=st.sampled_from(sorted(NAMES)), network=st.sampled_from(["IB", "IBext", "AWS Libfabric", "Socket"]),
    gpus=st.sampled_from([4, 8]), devices=st.sampled_from([1, 4, 8]),
)  # fmt: skip
def test_a_profile_is_named_only_where_the_log_contradicts_none_of_it(
    gpu: str, network: str, gpus: int, devices: int
) -> None:
    made = Made()
    made.gpu, made.network, made.gpus, made.devices = NAMES[gpu], network, gpus, devices
    for name in fits(made):
        profile = profiles.load(name)
        assert is_gpu(made.gpu, profile.gpu) and profile.gpus_per_node == gpus
        assert network in profile.networks
        assert devices == (profile.net_devices or profile.rails)


def test_all_profiles_are_listed_with_their_figures_and_sources() -> None:
    done = busbar("nccl", "profiles")
    assert done.exit_code == 0
    blocks = {block.partition(":")[0]: block for block in done.output.strip().split("\n\n")}
    assert sorted(blocks) == profiles.names()
    for name, block in blocks.items():
        assert profiles.load(name).source in block
    counts = re.findall(r"(\d+) hosts?: [\d.]+ GB/s", blocks["gb200-multirack"])
    assert counts == ["1", "2", "18", "32"], "also of a rack, and of the system that was measured"
    assert "2 hosts: 719.7 GB/s, floor 647.73 GB/s" in blocks["b200-ib-8x400"]
    assert "no figure is known" in blocks["a40"]
