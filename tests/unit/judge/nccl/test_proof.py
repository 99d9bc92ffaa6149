"""The proof of the transport cannot be fooled: what a mutated log no longer proves, it does not pass on."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from busbar.judge.nccl import Expectation, judge
from busbar.judge.nccl.log.reader import Binding
from busbar.judge.nccl.log.records import Preamble, Run
from tests.unit.judge.nccl.damage import AGAINST, CONTRADICTIONS, EVERY, base
from tests.unit.judge.nccl.logs import Made
from tests.unit.judge.nccl.tables import row

EXAMPLES = int(os.environ.get("BUSBAR_MUTANTS", "4"))
OPERATORS = {**AGAINST, **CONTRADICTIONS}


def want(profile: str) -> Expectation:
    # The real log over EFA is of 2021 and far below what is public today; its transport is what counts here.
    old: dict[str, Any] = {"expected_busbw_gbps": 43.7} if profile == "efa-p4d" else {}
    return Expectation(profile=profile, nodes=2, **old)


@pytest.mark.parametrize(("name", "profile"), EVERY)
def test_the_logs_that_are_mutated_pass(name: str, profile: str) -> None:
    assert judge(list(base(name)), want(profile)).reasons == []


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("name", "profile"), EVERY)
def test_a_log_that_lost_its_proof_or_contradicts_itself_does_not_pass(
    name: str, profile: str, operator: str
) -> None:
    lines = list(base(name))
    seeds = range(EXAMPLES if name == "made" else EXAMPLES // 2)
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
