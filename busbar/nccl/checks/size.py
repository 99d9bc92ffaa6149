"""Gate on how many took part: device list, NCCL's own counts, and the factor between busbw and algbw."""

from __future__ import annotations

from collections import Counter

from busbar.nccl.checks.context import Context, check
from busbar.nccl.checks.rows import unit
from busbar.nccl.expected.hardware import models
from busbar.nccl.log.collective import factor, infer, ratio
from busbar.nccl.log.evidence import Seen
from busbar.nccl.log.records import Half, Rank, Run, number
from busbar.nccl.verdict import Check

NAME = "ranks"


def ranks(context: Context) -> Check:
    """Ranks 0..n-1 once each, on the expected hosts, and n in every number that depends on it."""
    if not context.judged:
        return check(NAME, "unknown", "no table to judge")
    for run in context.judged:
        if run.preamble.repeats:
            return check(
                NAME, "fail", "several programs wrote this log: MPI was not effective (built without MPI=1?)"
            )
    listed = [r for r in context.judged if r.preamble.ranks]
    if len(listed) < len(context.judged):
        n = implied(context.judged[0])
        hint = f"; busbw/algbw implies {n}" if n else ""
        return check(NAME, "unknown", f"no device list before a table: who took part is not known{hint}")
    for run in context.judged:
        problem = _list(run, context) or _factor(run, len(run.preamble.ranks))
        if problem:
            first = run.preamble.ranks[0]
            return check(NAME, "fail", problem, Seen("", first.line, first.text))
    problem = _nccl(context)
    if problem:
        return check(NAME, "fail", problem)
    last = context.judged[0].preamble.ranks[-1]
    wish = "" if context.nodes_given else ", as the log says itself (--expect-nodes compares it with a wish)"
    return check(
        NAME, "pass", f"{context.ranks} ranks on {context.nodes} hosts{wish}", Seen("", last.line, last.text)
    )


def _list(run: Run, context: Context) -> str | None:
    listed, want = run.preamble.ranks, context.expectation
    numbers = Counter(r.rank for r in listed)
    if max(numbers.values()) > 1:
        return f"rank {numbers.most_common(1)[0][0]} is listed twice: several programs, MPI was not effective"
    if any(r.group for r in listed):
        return "the ranks are split into groups (NCCL_TESTS_SPLIT): busbw is that of a group"
    if set(numbers) != set(range(len(listed))):
        return f"the device list has gaps: {len(listed)} lines, highest rank {max(numbers)}"
    hosts = Counter(r.host for r in listed)
    if len({(r.host, r.device) for r in listed}) < len(listed):
        return "a GPU is listed twice"
    if want.nodes is not None and len(hosts) != want.nodes:
        return f"{len(hosts)} hosts took part, {want.nodes} were asked for: {', '.join(sorted(hosts)[:8])}"
    if want.hosts and {_short(h) for h in hosts} != {_short(h) for h in want.hosts}:
        missing = sorted({_short(h) for h in want.hosts} - {_short(h) for h in hosts})
        return f"other hosts took part than were asked for; missing: {', '.join(missing[:8])}"
    if want.gpus_per_node is not None and set(hosts.values()) != {want.gpus_per_node}:
        odd = next(h for h, n in hosts.items() if n != want.gpus_per_node)
        return f"{odd} has {hosts[odd]} ranks, {want.gpus_per_node} were asked for"
    other = _other_gpu(listed, want.gpu)
    if other is not None:
        return f"rank {other.rank} is on {other.gpu}, {want.gpu} was asked for"
    if len(listed) != context.ranks:
        return f"tables of {context.ranks} and of {len(listed)} ranks in one log"
    return None


def _other_gpu(listed: list[Rank], wanted: str | None) -> Rank | None:
    """The first rank on a GPU of another known model; names that say no model prove nothing."""
    asked = models(wanted or "")
    if not asked:
        return None
    for rank in listed:
        found = models(rank.gpu)
        if found and not found & asked:
            return rank
    return None


def _short(host: str) -> str:
    return host.partition(".")[0]


def _nccl(context: Context) -> str | None:
    """NCCL's own counts, where they were printed."""
    evidence, n = context.evidence, context.ranks
    for nranks, up in evidence.initialised.items():
        if nranks != n:
            return f"NCCL built a communicator of {nranks} ranks, the device list has {n}"
        if len(up) < nranks:
            return f"only {len(up)} of {nranks} ranks came up (Init COMPLETE)"
    for (nranks, nodes), seen in evidence.counts.items():
        hw = context.expectation.hardware
        # a rack of MNNVL hosts may count as its hosts or as one
        allowed = {context.nodes, hw.domains if hw else None}
        if nranks != n or nodes not in allowed:
            return (
                f"NCCL counts {nranks} ranks on {nodes} nodes (line {seen.line}), "
                f"the device list {n} on {context.nodes}"
            )
    return None


def _factor(run: Run, n: int) -> str | None:
    """busbw = algbw x k(n) in every half: the number of ranks that the program itself computed with."""
    name = infer(run).name
    if name is None:
        return "the collective is not known, so busbw cannot be tied to a number of ranks"
    if n < 2:
        return "one rank: busbw is 0 by definition, nothing was measured"
    k = factor(name, n)
    for row in run.rows:
        for half in (row.out_of_place, row.in_place):
            if not _fits(half, k):
                return (
                    f"line {row.line}: busbw/algbw {half.busbw}/{half.algbw} does not fit {n} ranks, {name} "
                    f"({k:.4f}): another number of ranks was measured"
                )
    return None


def _fits(half: Half, k: float) -> bool:
    algbw, busbw = number(half.algbw), number(half.busbw)
    if algbw is None or busbw is None:
        return False
    # each printed value is off by half its last digit at most
    slack = unit(half.busbw) + k * unit(half.algbw)
    return abs(busbw - k * algbw) <= slack * 1.05


def implied(run: Run) -> int | None:
    """Ranks that busbw/algbw implies, for a reader of an all_reduce without a device list."""
    k = ratio(run)
    if infer(run).name != "all_reduce" or k is None or not 0 < k < 2:
        return None
    return round(2 / (2 - k))
