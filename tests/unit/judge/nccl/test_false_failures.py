"""What is right is not refused: each class of healthy or unusual log keeps its true reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Expectation, judge, read_lines
from busbar.judge.nccl.log.known import Failure as Rule
from busbar.judge.nccl.log.known import failures as rules
from busbar.judge.nccl.log.tables import infer
from tests.diagnosis_page import LINES
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import Case, Hosts, Program
from tests.unit.judge.nccl.tables import MIB, measurement, row, table

BOUNDED = settings(max_examples=15)


@pytest.mark.parametrize(
    "rule", [r for r in rules() if r.lines and r.severity == "fatal"], ids=lambda r: r.name
)
def test_a_test_that_ended_with_an_error_did_not_hang(rule: Rule) -> None:
    started = [x for x in Made().lines() if x.startswith("#")]
    started = started[: next(i for i, x in enumerate(started) if "size" in x and "count" in x)]
    names = [d.name for d in judge([*started, LINES[rule.name]], WANT).diagnoses]
    assert rule.name in names and "hang" not in names
    assert "hang" in [d.name for d in judge(started, WANT).diagnoses]


def test_a_speed_of_the_port_that_nccl_finds_in_another_way_fails_no_log() -> None:
    line = (
        "worker-1:43:90 [3] misc/ibvwrap.cc:401 (wrap_ibv_query_port_speed) NCCL WARN Call to "
        "ibv_query_port_speed failed with error Protocol not supported errno 93"
    )
    verdict = judge(Made().lines_with(line, "before"), WANT)
    assert verdict.passed and [remark.text for remark in verdict.remarks] == [line]


@BOUNDED
@given(
    top=st.integers(3, 14), name=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "alltoall"])
)
def test_a_table_of_latencies_is_not_a_table_of_one_rank(top: int, name: str) -> None:
    made = Made(name=name, low=2**12, high=2 ** (top + 10), peak=0.01)
    log = [line for line in made.lines() if not line.startswith("#  Rank")]
    verdict = judge(log, WANT)
    assert verdict.check("ranks").code != "ranks.one"
    assert "mpi-not-effective" not in [d.name for d in verdict.diagnoses]


BANNER = "# nThread 1 nGpus 8 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 validation: 1"
SENTENCES = st.sampled_from(
    [
        "The summary said `{quoted}` at the end.",
        "We got {quoted} on the first try, which is fine.",
        'It must print "{quoted}" for every run',
        "Note that the last line ({quoted}) is a mean",
        "{quoted}",
        "> {quoted}",
    ]
)


@BOUNDED
@given(sentence=SENTENCES, position=st.integers(0, 10**6), data=st.data())
def test_prose_that_quotes_the_log_is_not_a_second_program(
    sentence: str, position: int, data: st.DataObject
) -> None:
    log = Made().lines()
    own = [x for x in log if x.startswith(("# Avg", "# Out of bounds"))]
    foreign = ["# Avg bus bandwidth    : 96.4945 ", "# Out of bounds values : 0 OK", BANNER]
    inside_a_sentence = sentence.partition("{")[0].strip() not in ("", ">")
    quoted = data.draw(st.sampled_from(foreign if inside_a_sentence else own))
    # behind the table, where an article goes on
    end = len(log) - next(i for i, x in enumerate(reversed(log)) if x.startswith("# Avg"))
    at = end + position % (len(log) - end + 1)
    text = [*log[:at], sentence.format(quoted=quoted.strip()), *log[at:]]
    assert judge(text, WANT).reasons == []


LAYOUTS = ("2.0", "2.10", "2.13", "2.17.8")


def unnamed(name: str, layout: str, hosts: int, gpus: int, scaled: bool = False) -> Log:
    """A log of a program that does not print its name."""
    program = Program.model_validate(
        {"name": name, "layout": layout, "sizes": ["1M", "1G"], "step": 4, "busbw": 200.0, "scaled": scaled}
    )
    names = [f"worker-{i}" for i in range(hosts)]
    return Log(Case(name="x", shape="", hosts=Hosts(names=names, gpus=gpus), programs=[program]))


@BOUNDED
@given(
    name=st.sampled_from(["all_reduce", "reduce_scatter"]),
    layout=st.sampled_from(LAYOUTS),
    hosts=st.integers(1, 40),
    gpus=st.sampled_from([2, 4, 8]),
)
def test_reduce_scatter_and_all_reduce_are_told_apart_by_their_counts(
    name: str, layout: str, hosts: int, gpus: int
) -> None:
    (run,) = read_lines(unnamed(name, layout, hosts, gpus).lines).runs
    found = infer(run)
    assert found.name == name
    assert found.certain


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_where_the_counts_contradict_each_other_the_bandwidths_tell(name: str) -> None:
    (run,) = read_lines(unnamed(name, "2.13", 2, 8).lines).runs
    run.rows[0] = replace(run.rows[0], count=run.rows[0].count - 1)
    assert infer(run).name == name


@pytest.mark.parametrize(
    ("busbw", "name", "certain"),
    # two ranks of each group; a count that is the whole message
    [("100.00", "all_reduce", True), ("50.00", "reduce_scatter", False)],
)
def test_the_ranks_of_a_group_and_the_count_tell_whether_a_collective_is_certain(
    busbw: str, name: str, certain: bool
) -> None:
    run = table([row(512 * MIB, measurement(algbw="100.00", busbw=busbw))], ranks=4)
    run.preamble.name = None
    run.preamble.ranks = [replace(rank, group=rank.rank // 2) for rank in run.preamble.ranks]
    assert (infer(run).name, infer(run).certain) == (name, certain)


@BOUNDED
@given(
    name=st.sampled_from(["all_gather", "reduce_scatter"]),
    hosts=st.integers(1, 20),
    gpus=st.sampled_from([2, 4, 8]),
)
def test_algbw_that_is_scaled_already_is_no_damage(name: str, hosts: int, gpus: int) -> None:
    verdict = judge(unnamed(name, "2.0", hosts, gpus, scaled=True).lines, Expectation())
    assert list(verdict.collectives) == [name]
    status = {gate: verdict.check(gate).status for gate in ("collective", "ranks", "completeness")}
    assert set(status.values()) == {"pass"}, verdict.reasons


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_no_nccl_tests_with_the_column_of_wrong_values_scales_algbw(name: str) -> None:
    lines = [line.replace("error", "#wrong") for line in unnamed(name, "2.0", 2, 8, scaled=True).lines]
    assert judge(lines, Expectation()).check("completeness").status == "fail"


@BOUNDED
@given(first=st.integers(0, 200), last=st.integers(0, 200))
def test_an_excerpt_is_not_said_to_miss_a_rail(first: int, last: int) -> None:
    log = Made().lines()
    banner = next(i for i, x in enumerate(log) if "nThread" in x)
    average = next(i for i, x in enumerate(log) if x.startswith("# Avg"))
    part = log[first % len(log) :][: last % len(log) + 1]
    verdict = judge(part, WANT)
    if log[banner] not in part or log[average] not in part:
        assert verdict.check("rails").status != "fail"
        assert "rail-missing" not in [d.name for d in verdict.diagnoses]


def test_the_model_of_the_gpu_is_that_of_the_device_list() -> None:
    made = Made(hosts=["worker-0"], peak=400.0)
    verdict = judge(made.lines(), Expectation())
    assert verdict.expected_gbps == 481.0 and verdict.expectation["gpu"] == "H100"
    made.gpu = "NVIDIA H100 PCIe"
    assert judge(made.lines(), Expectation()).check("busbw").code == "busbw.no_expectation"


@pytest.mark.parametrize("cut", ["# nThread", "# Avg bus bandwidth"])
def test_fewer_hcas_in_an_excerpt_are_unknown(cut: str) -> None:
    few = [line.replace("[7]mlx5_7:1/IB", "").rstrip() for line in Made().lines()]
    assert judge(few, WANT).check("hcas").code == "hcas.too_few"
    excerpt = judge([line for line in few if not line.startswith(cut)], WANT)
    assert excerpt.check("hcas").status == "unknown"
