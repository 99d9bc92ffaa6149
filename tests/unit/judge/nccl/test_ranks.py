"""Who took part: the device list, NCCL's own counts, and the number of ranks that busbw was computed with."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Expectation
from busbar.judge.nccl.checks.context import Check
from busbar.judge.nccl.checks.ranks import ranks
from busbar.judge.nccl.expected.system import is_gpu
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.records import Banner, LogLine, Measurement, Rank, Run
from tests.unit.judge.nccl.tables import AT, MIB, context, measurement, row, said, table

SIXTEEN = measurement("5000.0", "100.00", "187.50")  # all_reduce: busbw = algbw x 2 x 15 / 16
LINE = LogLine("", 7, "as printed")


def run_of(n: int = 16, busbw: Measurement = SIXTEEN, name: str = "all_reduce") -> Run:
    return whole(table([row(512 * MIB, busbw)], n, name))


def whole(run: Run) -> Run:
    """RUN between its arguments and its summary."""
    run.preamble.banner, run.avg = Banner(512 * MIB, 512 * MIB, 2, "factor", AT), "1"
    return run


def checked(*runs: Run, evidence: Evidence | None = None, **want: object) -> Check:
    """What the gate says of tables of 16 ranks on two hosts."""
    expectation = Expectation.model_validate({"nodes": 2, "gpus_per_node": 8, **want})
    return ranks(context(expectation, *runs, evidence=evidence, nodes=2, ranks=16, nodes_given=True))


def with_list(listed: Sequence[Rank]) -> Run:
    run = run_of()
    run.preamble.ranks = list(listed)
    return run


LIST = run_of().preamble.ranks


def test_sixteen_ranks_on_two_hosts_are_complete_and_the_last_line_of_the_list_shows_it() -> None:
    check = checked(run_of())
    assert (check.code, check.reason, check.line) == ("ranks.complete", "16 ranks on 2 hosts", 16)


@pytest.mark.parametrize(
    ("busbw", "hint"),
    [("187.50", "implies 16 ranks"), ("100.00", "implies 2 ranks"), ("200.00", None), ("250.00", None)],
)
def test_without_a_device_list_busbw_gives_a_hint_where_there_is_such_a_number(
    busbw: str, hint: str | None
) -> None:
    check = checked(run_of(0, measurement("5000.0", "100.00", busbw)), run_of(0, SIXTEEN))
    assert check.code == "ranks.no_device_list"
    assert check.reason.partition("busbw/algbw ")[2] == (hint or "")


@pytest.mark.parametrize(("name", "busbw"), [("broadcast", "100.00"), ("all_reduce", "0.00")])
@pytest.mark.parametrize(
    ("hosts_given", "found"), [(True, ("fail", "ranks.one")), (False, ("unknown", "ranks.alone"))]
)
def test_one_rank_measures_nothing_and_fails_where_hosts_were_expected(
    hosts_given: bool, found: tuple[str, str], name: str, busbw: str
) -> None:
    run = run_of(1, measurement("5000.0", "100.00", busbw), name)
    check = ranks(replace(context(Expectation(), run, nodes=1, ranks=1), nodes_given=hosts_given))
    assert (check.status, check.code) == found


def test_two_ranks_are_enough_to_measure() -> None:
    run = run_of(2, measurement("5000.0", "100.00", "100.00"))
    assert ranks(context(Expectation(), run, nodes=1, ranks=2)).status == "pass"


@pytest.mark.parametrize(
    ("listed", "code"),
    [
        ([replace(rank, group=rank.rank % 2) for rank in LIST], "ranks.split"),
        (LIST[1:], "ranks.gaps"),
        (LIST[:8], "ranks.tables_differ"),
        ([*LIST[:-1], replace(LIST[-1], device=6)], "ranks.gpu_listed_twice"),
    ],
)
def test_a_device_list_that_is_not_that_of_one_program_is_refused(listed: list[Rank], code: str) -> None:
    check = checked(with_list(listed))
    assert (check.status, check.code) == ("fail", code)
    assert check.line == (16 if code == "ranks.gpu_listed_twice" else listed[0].at.line)


@pytest.mark.parametrize(
    ("gpus", "shared"),
    [
        ([(0, "")] * 8, False),
        # without its PCI domain an address may stand for several GPUs
        ([(0, "1b:00")] * 8, False),
        ([(0, "0000:1b:00")] * 8, True),
        ([(0, ""), *[(1, "")] * 7], True),
    ],
)
def test_a_gpu_is_shared_only_where_the_list_can_tell_gpus_apart(
    gpus: list[tuple[int, str]], shared: bool
) -> None:
    listed = [
        replace(rank, device=gpu[0], bus=gpu[1]) for rank, gpu in zip(LIST, [*gpus, *gpus], strict=True)
    ]
    check = checked(with_list(listed))
    assert (check.code == "ranks.gpu_listed_twice") == shared, check.reason


def test_hosts_are_compared_without_their_domain() -> None:
    assert checked(run_of(), hosts=["worker-0.site", "worker-1.site"]).status == "pass"
    assert checked(run_of(), hosts=["worker-0.site", "worker-2.site"]).code == "ranks.other_hosts"


def test_every_host_has_the_expected_ranks_and_not_only_the_first() -> None:
    moved = [*LIST[:15], replace(LIST[15], host="worker-2")]
    found = ranks(context(Expectation(gpus_per_node=8), with_list(moved), nodes=3, ranks=16))
    assert (found.code, found.reason) == ("ranks.wrong_per_node", "worker-1 has 7 ranks, expected 8")


SXM, MIG, PCIE = "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100 PCIe"
OTHERS = [
    "NVIDIA GeForce RTX 4090", "NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX A6000", "Quadro RTX 8000",
    "Tesla P4", "NVIDIA TITAN V", "NVIDIA A2", "NVIDIA L20", "AMD Instinct MI300X", "NVIDIA A100X",
    "NVIDIA GH200 480GB",
    "NVIDIA H800", PCIE, "NVIDIA H100 NVL", MIG, "GRID H100-10C", "NVIDIA H100-80C",
]  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "want", "code"),
    [
        (SXM, "H100", "ranks.complete"),
        (SXM, "H100-SXM5-80GB", "ranks.complete"),
        ("NVIDIA H100", "H100", "ranks.complete"),
        (PCIE, "H100 PCIe", "ranks.complete"),
        (SXM, "H100 PCIe", "ranks.other_gpu"),
        *((gpu, "H100", "ranks.other_gpu") for gpu in OTHERS),
        ("NVIDIA Graphics Device", "H100", "ranks.unknown_gpu"),
        ("", "H100", "ranks.unknown_gpu"),
        ("NVIDIA X1000 96GB", "X1000", "ranks.complete"),
        ("AMD Radeon Graphics", "MI355X", "ranks.complete"),
        (SXM, "X1000", "ranks.other_gpu"),
        ("NVIDIA A100-SXM4-80GB", None, "ranks.complete"),
    ],
)
def test_a_rank_is_on_the_gpu_that_was_asked_for(gpu: str, want: str | None, code: str) -> None:
    check = checked(with_list([replace(rank, gpu=gpu) for rank in LIST]), gpu=want)
    assert check.code == code, check.reason
    if code == "ranks.other_gpu":
        assert (check.line, check.reason) == (1, f"rank 0 is on {gpu}, expected {want}")
    if code == "ranks.unknown_gpu":
        assert (check.status, check.line) == ("unknown", 1)


@settings(max_examples=60)
@given(st.sampled_from([*OTHERS, SXM, "NVIDIA B200"]), st.text(st.characters(codec="ascii"), max_size=12))
def test_no_name_of_another_product_is_the_wanted_gpu(name: str, more: str) -> None:
    assert is_gpu(f"{name} {more}", "A30") is not True or "A30" in more.upper()


def test_another_gpu_outweighs_one_that_is_not_known() -> None:
    mixed = [replace(LIST[0], gpu="?"), replace(LIST[1], gpu="NVIDIA A100"), *LIST[2:]]
    assert checked(with_list(mixed), gpu="H100").code == "ranks.other_gpu"


@pytest.mark.parametrize(
    ("evidence", "code"),
    [
        (Evidence(initialized={16: set(range(16))}, counts={(16, 2): LINE}), "ranks.complete"),
        (Evidence(initialized={8: set(range(8))}), "ranks.other_communicator"),
        (Evidence(initialized={16: set(range(15))}), "ranks.not_all_up"),
        (Evidence(counts={(8, 2): LINE}), "ranks.other_count"),
        (Evidence(counts={(16, 1): LINE}), "ranks.other_count"),
        (Evidence(local_ranks=said("8") | said("16")), "ranks.other_count"),
        (Evidence(counts={(16, 2): LINE, (16, 16): LINE}), "ranks.other_count"),
    ],
)
def test_nccls_own_counts_are_those_of_the_device_list(evidence: Evidence, code: str) -> None:
    assert checked(run_of(), evidence=evidence).code == code


def test_nccl_may_count_a_rack_as_one_node() -> None:
    evidence = Evidence(counts={(16, 1): LINE}, local_ranks=said("16"))
    assert checked(run_of(), evidence=evidence, nodes_per_domain=2).code == "ranks.complete"


@pytest.mark.parametrize(
    ("algbw", "busbw", "fits"),
    [
        # 100.00 may be 99.995 to 100.005 GB/s, so busbw 187.4906 to 187.5094, each printed with two decimals
        ("100.00", "187.51", True),
        ("100.00", "187.49", True),
        ("100.00", "187.52", False),
        ("100.00", "187.48", False),
        ("N/A", "187.50", False),
        ("100.00", "N/A", False),
    ],
)
def test_busbw_is_that_of_16_ranks_within_what_both_values_were_rounded_by(
    algbw: str, busbw: str, fits: bool
) -> None:
    check = checked(whole(table([row(512 * MIB, SIXTEEN, measurement("5000.0", algbw, busbw))], 16)))
    assert check.code == ("ranks.complete" if fits else "ranks.other_factor")


def test_the_factor_of_an_unknown_program_is_not_known() -> None:
    assert checked(run_of(name="my_own")).code == "ranks.collective_unknown"
