"""What the gates are given: the tables, the hosts, and what was printed for each table."""

from collections.abc import Callable
from typing import Any

import pytest

from busbar.judge.nccl import Expectation
from busbar.judge.nccl.checks import for_each_table
from busbar.judge.nccl.checks.context import Check, Context, build, failed, not_required, passed, unknown
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.reader import ParsedLog, Proof
from busbar.judge.nccl.log.records import Preamble, Rank, Run
from tests.unit.judge.nccl.tables import AT, gates_of, named, whole


def built(*runs: Run, dangling: Preamble | None = None, **want: Any) -> Context:
    log = ParsedLog(list(runs), dangling, Evidence(), [Proof(Evidence(), Evidence()) for _ in runs])
    return build(log, Expectation(**want))


def on_hosts(hosts: int, per_host: int, *, first: int = 0, name: str = "all_reduce") -> Run:
    run = named(f"{name}_perf")
    run.preamble.ranks = [
        Rank(first + n, 0, n, f"worker-{n // per_host}", n % per_host, "NVIDIA H100 80GB HBM3", AT)
        for n in range(hosts * per_host)
    ]
    return run


def test_the_device_list_says_what_the_expectation_does_not() -> None:
    found = built(on_hosts(2, 8))
    assert (found.nodes, found.ranks, found.nodes_given) == (2, 16, False)
    want = found.expectation
    assert (want.nodes, want.gpus_per_node, want.gpu, found.domains) == (2, 8, "H100", 2)
    found = built(on_hosts(2, 8), nodes=3)
    assert (found.nodes, found.expectation.nodes, found.nodes_given) == (2, 3, True)


def test_hosts_with_unequal_numbers_of_ranks_say_nothing_about_the_system() -> None:
    run = on_hosts(2, 8)
    run.preamble.ranks.pop()
    found = built(run)
    assert (found.nodes, found.ranks, found.expectation.nodes, found.domains) == (2, 15, None, None)


def test_one_host_of_a_longer_list_does_not_say_how_many_there_were() -> None:
    assert built(on_hosts(1, 8)).nodes == 1
    part = built(on_hosts(1, 8, first=8))
    assert (part.nodes, part.ranks, part.expectation.nodes) == (None, None, None)
    assert built(on_hosts(2, 8, first=8)).nodes == 2
    assert built(named("all_reduce_perf", preamble=Preamble(name="all_reduce_perf"))).nodes is None


def test_the_wanted_tables_are_those_of_the_expectation_or_else_all() -> None:
    first, second, unknown_one = on_hosts(2, 8), on_hosts(4, 8, name="broadcast"), named("my_own")
    found = built(unknown_one, first, second)
    assert found.tables == {"all_reduce": [first], "broadcast": [second]}
    found = built(first, second, collectives=["broadcast", "alltoall"])
    assert found.tables == {"broadcast": [second], "alltoall": []}
    assert (found.nodes, found.judged) == (4, [second])


def test_a_log_without_the_wanted_table_is_described_by_the_others() -> None:
    assert built(on_hosts(2, 8), collectives=["broadcast"]).nodes == 2


Gate = Callable[[Context], Check]
REASONS: dict[str, Gate] = {
    "pass": lambda _: passed("sharp.used", "used"),
    "fail": lambda _: failed("sharp.fallback", "denied"),
    "unknown": lambda _: unknown("sharp.no_evidence", "silent"),
    "not-required": lambda _: not_required("sharp.not_required", "not asked for"),
}


@pytest.mark.parametrize(
    ("statuses", "reason"),
    [
        (["fail"], "denied"),
        (["pass", "fail"], "table of all_reduce, line 21: denied"),
        (["unknown", "fail"], "table of all_reduce, line 21: denied"),
        (["unknown", "pass"], "table of all_reduce, line 2: silent"),
        (["not-required", "pass"], "used"),
        (["not-required", "not-required"], "not asked for"),
    ],
)
def test_of_several_tables_the_worst_counts_and_is_named(statuses: list[str], reason: str) -> None:
    answers = iter(statuses)
    runs = [whole(1 + 19 * n) for n in range(len(statuses))]
    check = for_each_table(lambda each: REASONS[next(answers)](each))(gates_of(*runs))
    assert check is not None and check.reason == reason


def test_each_table_is_judged_by_what_was_printed_for_it() -> None:
    runs = [whole(1), whole(20)]
    found = gates_of(*runs)
    found.log.proofs = [Proof(Evidence(hosts={name}), Evidence()) for name in ("a", "b")]
    found.log.evidence = Evidence(hosts={"a", "b"})
    assert [each.evidence.hosts for each in found.each] == [{"a"}, {"b"}]
    assert found.evidence.hosts == {"a", "b"}
    assert found.each[0].each == [found.each[0]]
    assert gates_of().each[0].judged == []
