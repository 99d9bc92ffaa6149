"""One thing is wrong in an otherwise healthy log: the gate that looks at it does not pass, and names it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from busbar.judge.nccl import Expectation, judge
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases

SOCKET = "worker-0:40:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0"
FATAL = "worker-0:40:90 [0] net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.0.0.5<5> with status=12"


def changed(pattern: str, new: str, only: str = "") -> list[str]:
    """The made log with NEW in place of PATTERN, in each line that holds ONLY."""
    lines = Made().lines()
    found = [re.sub(pattern, new, line) if only in line else line for line in lines]
    assert found != lines
    return found


@pytest.mark.parametrize(("columns", "why"), [(r"none      -1", "redop none"), (r" sum       0", "root 0")])
def test_the_columns_of_a_table_are_those_of_the_collective_that_is_named(columns: str, why: str) -> None:
    check = judge(changed(r" sum      -1", columns), WANT).check("collective")
    assert (check.status, check.code) == ("unknown", "collective.uncertain")
    assert check.reason.endswith(f"printed: all_reduce_perf, but its rows have {why})")


@pytest.mark.parametrize(
    "name", ["all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv"]
)
def test_a_collective_is_certain_with_the_columns_that_it_prints(name: str) -> None:
    assert judge(Made(name=name).lines(), WANT).check("collective").status == "pass"


def test_a_port_that_is_listed_twice_is_one_hca() -> None:
    check = judge(changed(r"\[7\]mlx5_7:1", "[7]mlx5_0:1"), WANT).check("hcas")
    assert (check.status, check.code) == ("fail", "hcas.too_few")


def test_two_ports_of_one_hca_are_two() -> None:
    assert judge(changed(r"\[7\]mlx5_7:1", "[7]mlx5_0:2"), WANT).check("hcas").status == "pass"


def test_an_edge_over_the_network_between_gpus_of_one_host_is_named() -> None:
    made = Made()
    made.info = [
        f"worker-0:{40 + rank}:90 [{rank}] NCCL INFO Channel 00/1 : 0[0] -> 1[1] [{way}] via NET/IB/0/GDRDMA"
        for rank, way in enumerate(("send", "receive"))
    ]
    assert judge(made.lines(), WANT).passed  # of another connection: not an edge of the collective
    made.info = [line.replace("00/1", "00/0") for line in made.info]
    check = judge(made.lines(), WANT).check("transport")
    assert (check.status, check.code) == ("fail", "transport.net_inside_node")
    assert "channel 0 from rank 0 to 1, both on worker-0" in check.reason
    apart = Expectation(profile="h100-ib-8x400", nodes=2, nvlink_gbps=0)
    assert judge(made.lines(), apart).check("transport").status == "pass", "NVLink does not join them"


@pytest.mark.parametrize("hidden", [SOCKET, FATAL, "# Out of bounds values : 9 FAILED"])
@pytest.mark.parametrize("length", [8100, 8192, 20_000])
def test_what_stands_too_far_behind_in_a_line_costs_the_pass(hidden: str, length: int) -> None:
    lines = Made().lines()
    verdict = judge([*lines[:40], "x" * length + " " + hidden, *lines[40:]], WANT)
    assert not verdict.passed


@pytest.mark.parametrize(
    "line",
    [
        "worker-0:40:90 [0] NCCL INFO Channel 00/32 : " + " ".join(map(str, range(4000))),
        "+ mpirun -host " + ",".join(f"worker-{n}.nccl.svc:8" for n in range(1000)),
    ],
)
def test_a_long_list_of_ranks_or_hosts_is_no_damage(line: str) -> None:
    lines = Made().lines()
    assert judge([*lines[:40], line, *lines[40:]], WANT).reasons == []


PREFIXES: dict[str, Callable[[int], str]] = {
    "stern": lambda _: "nccl-launcher-x7k mpi ",
    "line numbers": lambda n: f"{n:6d}\t",
    "seconds": lambda n: f"17252640{n:02d}.123456 ",
    "compose": lambda _: "worker-0  | ",
    "pdsh twice": lambda _: "10.0.0.7: 10.0.0.7: ",
    "srun": lambda n: f"{n}: ",
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_interrupted_row_is_put_together_behind_any_prefix(prefix: str) -> None:
    lines = Log(cases()["a row interrupted by messages"]).lines
    plain = judge(lines, WANT)
    wrapped = judge([PREFIXES[prefix](n) + line for n, line in enumerate(lines, 1)], WANT)
    assert wrapped.check("completeness").status == plain.check("completeness").status == "pass"
    assert wrapped.busbw_gbps == plain.busbw_gbps


def case(name: str, *changes: tuple[str, str], add: str = "") -> list[str]:
    """Lines of a made case: in the last line with the first text of a pair, the second; ADD before all."""
    lines = list(Log(cases()[name]).lines)
    for old, new in changes:
        at = max(i for i, line in enumerate(lines) if old in line)
        lines[at] = lines[at].replace(old, new)
    at = next(i for i, line in enumerate(lines) if "NCCL INFO" in line)
    return [*lines[:at], add, *lines[at:]] if add else lines


CHOICE = (
    "worker-0:40:90 [0] NCCL INFO AllReduce: {} Bytes -> Algo {} proto SIMPLE channel{{Lo..Hi}}={{0..15}}"
)


@pytest.mark.parametrize(
    ("size", "algorithm", "status"),
    [
        (8589934592, "RING", "fail"),
        (8589934592, "NVLS_TREE", "fail"),
        (17179869184, "TREE", "fail"),
        (8589934592, "COLLNET_DIRECT", "pass"),
        # small messages may take another way
        (1024, "TREE", "pass"),
    ],
)
def test_the_switches_reduce_the_largest_message(size: int, algorithm: str, status: str) -> None:
    lines = case("reductions in the switches", add=CHOICE.format(size, algorithm))
    check = judge(lines, Expectation(profile="h100-sharp", nodes=2)).check("sharp")
    assert check.status == status
    assert (check.code == "sharp.other_algorithm") == (status == "fail")


def test_a_host_that_does_not_use_nvlink_between_hosts_fails_its_rack() -> None:
    lines = case("four hosts of one rack", ("MNNVL 1", "MNNVL 0"))
    check = judge(lines, Expectation(profile="gb200-nvl72", nodes=4)).check("mnnvl")
    assert (check.status, check.code) == ("fail", "mnnvl.not_working")
