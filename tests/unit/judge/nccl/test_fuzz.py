"""Damage never helps: a log that is cut, mixed, repeated or scrambled passes only if it passed before.

BUSBAR_FUZZ_EXAMPLES raises the number of examples (the default keeps the suite quick). They are drawn from
made logs; bytes that are not a log at all are tried as well.
"""

import os
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Expectation, judge
from busbar.judge.nccl.log.reader import Binding, read_lines
from busbar.judge.nccl.log.records import Preamble, Run
from tests.unit.judge.nccl.damage import AGAINST, CONTRADICTIONS, GOOD, base, each
from tests.unit.judge.nccl.logs import Made
from tests.unit.judge.nccl.reading import as_object
from tests.unit.judge.nccl.tables import row

EXAMPLES = int(os.environ.get("BUSBAR_FUZZ_EXAMPLES", "25"))
BOUNDED = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
# Bad logs, which must stay bad however they are damaged, each with its profile.
BAD = {
    "a row interrupted by messages": "h100-ib-8x400",
    "wrong values": "h100-ib-8x400",
    "no GPUDirect, and a verbs call that fails": "roce",
    "two runs of one host each, published as one of two hosts": "h100-ib-8x400",
    "TCP in place of RDMA": "a100-noib",
}


def want(profile: str) -> Expectation:
    return Expectation(profile=profile, nodes=2)


def damaged(lines: list[str], seed: int) -> list[str]:
    """One to four random operations on a copy of LINES."""
    rng = random.Random(seed)
    out = list(lines)
    for _ in range(rng.randint(1, 4)):
        if not out:
            return out
        out = rng.choice(OPERATIONS)(out, rng)
    return out


def _moved(lines: list[str], rng: random.Random) -> list[str]:
    """Some lines are missing, there twice or in another order, or all before or behind one are missing."""
    a = rng.randrange(len(lines))
    b = a + rng.choice((1, 1, 2, 10, 200, 5000))
    part = lines[a:b]
    made: tuple[list[str], ...] = ([], [*part, *part], rng.sample(part, len(part)), lines[b : b + 1] + part)
    return rng.choice([*(lines[:a] + each + lines[b:] for each in made), lines[:a], lines[a:]])


def _torn(lines: list[str], rng: random.Random) -> list[str]:
    """A line is cut, split, joined with the next one, or has other characters."""
    a = rng.randrange(len(lines))
    text, at = lines[a], rng.randrange(len(lines[a]) + 1)
    other = list(text)
    for place in rng.choices(range(len(text)), k=rng.randint(1, 6)) if text else ():
        other[place] = rng.choice("0123456789.#[]:/ aNsv\x00\x1b\ufffd")
    made = ([text[:at]], [text[:at], text[at:]], ["".join(other)])
    joined = [*lines[:a], "".join(lines[a : a + 2]), *lines[a + 2 :]]
    return rng.choice([joined, *([*lines[:a], *each, *lines[a + 1 :]] for each in made)])


OPERATIONS = (_moved, _torn)


@pytest.mark.parametrize(("name", "profile"), each(BAD))
@BOUNDED
@given(seed=st.integers(0, 2**63))
def test_a_bad_log_never_becomes_good(name: str, profile: str, seed: int) -> None:
    lines = list(base(name))
    assert not judge(damaged(lines, seed), want(profile)).passed


@pytest.mark.parametrize(("name", "profile"), each(GOOD))
@BOUNDED
@given(seed=st.integers(0, 2**63))
def test_a_damaged_good_log_does_not_gain(name: str, profile: str, seed: int) -> None:
    """It may still pass where nothing that matters was hit, but never with another number."""
    lines = list(base(name))
    whole = judge(lines, want(profile))
    verdict = judge(damaged(lines, seed), want(profile))
    assert whole.passed
    if verdict.passed:
        assert (verdict.busbw_gbps, verdict.ranks, verdict.nodes) == (
            whole.busbw_gbps,
            whole.ranks,
            whole.nodes,
        )
        assert verdict.transport == whole.transport


@BOUNDED
@given(data=st.binary(max_size=4000))
def test_bytes_that_are_no_log_are_no_verdict(data: bytes) -> None:
    verdict = judge(data.split(b"\n"), want("h100-ib-8x400"))
    assert verdict.verdict in ("unknown", "fail")
    as_object(read_lines(data.split(b"\n")))


WORDS = st.sampled_from(
    [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 1",
        "#  Rank  0 Group  0 Pid 1 on a device  0 [0x1] H100",
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : nan",
        "8 2 float sum -1 1 1 1 0 1 1 1 0",
        "8 2 float sum -1 nan inf -inf 0 1e999 1 1 0",
        "9" * 400 + " 2 float sum -1 1 1 1 0 1 1 1 0",
        "8 2 float sum -1a:1:1 [0] NCCL INFO Using network IB",
        "1 1 1 0 1 1 1 0",
        "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/99999999999999999999/GDRDMA",
        "a:1:1 [0] NCCL INFO comm 0x1 rank 99999999999 nranks 99999999999 Init COMPLETE",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time",
        "# nThread 1 minBytes " + "9" * 5000 + " maxBytes 8 step: 2(factor) iters: 1 validation: 1",
        "# Out of bounds values : " + "9" * 5000 + " OK",
        "8 2 float sum -1 0.0e999 1 1 0 1 1e-999 1 0",
        '{"log": 5}',
        "\ufeff\x1b[31m[1,0]<stdout>:",
    ]
)


@BOUNDED
@given(lines=st.lists(WORDS | st.text(max_size=60), max_size=40))
def test_odd_lines_in_any_order_do_not_break_the_reader(lines: list[str]) -> None:
    assert not judge(lines, want("h100-ib-8x400")).passed
    as_object(read_lines(lines))


# ---- the proof of the transport: what a log no longer proves, it does not pass on
MUTANTS = int(os.environ.get("BUSBAR_MUTANTS", "4"))
OPERATORS = {**AGAINST, **CONTRADICTIONS}


@pytest.mark.parametrize(("name", "profile"), each(GOOD))
def test_the_logs_that_are_mutated_pass(name: str, profile: str) -> None:
    assert judge(list(base(name)), want(profile)).reasons == []


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("name", "profile"), each(GOOD))
def test_a_log_that_lost_its_proof_or_contradicts_itself_does_not_pass(
    name: str, profile: str, operator: str
) -> None:
    lines = list(base(name))
    seeds = range(MUTANTS if name == "made" else MUTANTS // 2)
    made = [OPERATORS[operator](lines, random.Random(seed)) for seed in seeds]
    assert name != "made" or any(mutant != lines for mutant in made), "the operator changes nothing"
    assert not any(judge(mutant, want(profile)).passed for mutant in made if mutant != lines)


def two_programs(evidence: Callable[[list[str], list[str]], list[str]]) -> list[str]:
    """Two programs of the same processes with the same evidence, of which EVIDENCE builds the second's."""
    first = Made().lines()
    second = Made().lines()
    info = [line for line in second if "NCCL" in line]
    start = second.index(info[0])
    rest = second[start + len(info) :]
    return [*first, *second[:start], *evidence(info, rest)]


SECOND: dict[str, Callable[[list[str], list[str]], list[str]]] = {
    "none": lambda info, rest: rest,
    "no edges": lambda info, rest: [line for line in info if "via NET" not in line] + rest,
    "edges behind the last row": lambda info, rest: rest[:-3] + info + rest[-3:],
    "edges behind the table": lambda info, rest: rest + info,
    "edges of other processes": lambda info, rest: (
        [re.sub(r":\d+:(\d+) \[", r":777:\1 [", x) for x in info] + rest
    ),
    "edges without a process, behind the table": lambda info, rest: (
        rest + [x[x.index("NCCL INFO") :] for x in info]
    ),
    "edges over TCP": lambda info, rest: [x.replace("NET/IB/", "NET/Socket/") for x in info] + rest,
    "half of the edges": lambda info, rest: [x for x in info if "Channel 0" not in x or x > "w"][::2] + rest,
}


def test_two_programs_with_their_own_evidence_pass() -> None:
    assert judge(two_programs(lambda info, rest: info + rest), want("h100-ib-8x400")).reasons == []


@pytest.mark.parametrize("what", SECOND)
def test_a_table_does_not_pass_on_the_evidence_of_another(what: str) -> None:
    lines = two_programs(SECOND[what])
    assert lines[: len(Made().lines())] == Made().lines()
    assert not judge(lines, want("h100-ib-8x400")).passed


def test_a_first_table_does_not_pass_on_the_evidence_of_a_later_one() -> None:
    silent = [line for line in Made().lines() if "NCCL" not in line]
    verdict = judge([*silent, *Made().lines()], want("h100-ib-8x400"))
    assert verdict.check("transport").status == "unknown"
    assert verdict.transport == "unknown"


def test_evidence_of_a_program_that_is_not_asked_for_is_not_judged() -> None:
    second = Made(name="all_gather", network="Socket", gdr=False)
    asked = Expectation(profile="h100-ib-8x400", nodes=2, collectives=["all_reduce"])
    assert judge([*Made().lines(), *second.lines()], asked).reasons == []


def test_messages_without_a_process_belong_to_the_table_that_follows() -> None:
    lines = [re.sub(r"^worker-\d:\d+:\d+ \[\d\] (?=NCCL)", "", line) for line in Made().lines()]
    verdict = judge(lines, want("h100-ib-8x400"))
    assert verdict.check("transport").status == "pass"
    assert verdict.check("rails").status == "unknown"  # rails are counted by host


def test_messages_of_processes_that_two_later_device_lists_name_are_of_neither() -> None:
    binding, (first, second, third) = Binding(), (Preamble(), Preamble(), Preamble())
    for rows, pid in enumerate((1, 2, 1)):
        binding.evidence("a", pid, first, rows).hosts.add(f"process {pid}")
    binding.rank("a", 1, second)
    binding.rank("a", 2, third)
    found = binding.proofs([Run(each, 1, rows=[row(8)] * 3) for each in (first, second, third)])
    assert [proof.own.hosts for proof in found] == [{"process 1", "process 2"}, {"process 1"}, set()]
