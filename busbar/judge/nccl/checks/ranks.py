"""Gate on the ranks: device list, NCCL's own counts, and the factor between busbw and algbw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from busbar.judge.nccl.checks.context import Check, Context, failed, passed, unknown
from busbar.judge.nccl.expected.system import is_gpu
from busbar.judge.nccl.log.reader import short
from busbar.judge.nccl.log.records import Measurement, Rank, Run, number, rounding
from busbar.judge.nccl.log.tables import factor, infer, is_scaled, ratio
from busbar.text import counted

# codes that no missing line of a device list causes
OF_WHOLE_LISTS = ("ranks.split", "ranks.gpu_listed_twice", "ranks.other_gpu")


def ranks(context: Context) -> Check:
    """Check that ranks 0..n-1 occur once, on the expected hosts, and that all numbers agree with n."""
    mixed = [run.preamble for run in context.log.runs if run.has_several_programs]
    if mixed and all(preamble.has_whole_lists for preamble in mixed):
        return failed("ranks.mixed", "two programs wrote one table, or its size sweep ran more than once")
    if mixed:
        reason = "several programs wrote this log: MPI was not effective (built without MPI=1?)"
        return failed("ranks.several_programs", reason)
    if not context.judged:
        return unknown("ranks.no_table", "no table to judge")
    if any(r.is_one_rank for r in context.judged):
        return _one_rank(context)
    if any(not r.preamble.ranks for r in context.judged):
        n = _implied(context.judged[0])
        hint = f"; busbw/algbw implies {n} ranks" if n else ""
        reason = f"no device list before a table: who took part is not known{hint}"
        return unknown("ranks.no_device_list", reason)
    problem = next(_problems(context), None)
    if problem is None:
        own = "" if context.nodes_given else " by the log's own device list (pass --expect-nodes to enforce)"
        reason = f"{counted(context.ranks, 'rank')} on {counted(context.nodes, 'host')}{own}"
        return passed("ranks.complete", reason, context.judged[0].preamble.ranks[-1].at)
    names = {r.host for r in context.listed}
    counted_nodes = max((nodes for _, nodes in context.evidence.counts), default=0)
    if problem.status == "fail" and len(names) < counted_nodes:
        reason = f"{problem.reason}; NCCL counts {counted_nodes} nodes, so some hosts have the same name"
        fix = "give each host a name of its own (hostname), and run again"
        return unknown(problem.code, reason, next(iter(context.evidence.counts.values())), fix)
    if problem.code not in OF_WHOLE_LISTS and _is_excerpt(context):
        return unknown("ranks.excerpt", f"{problem.reason}; parts of the log are missing")
    return _one_rank(context) if problem.code == "ranks.one" else problem


def _problems(context: Context) -> Iterator[Check]:
    for run in context.judged:
        yield from _listed(run, context)
        yield from _hosts(run, context)
        yield from _factor(run)
    yield from _counted_by_nccl(context)
    for run in context.judged:
        yield from _unknown_gpu(run, context.expectation.gpu)


def _one_rank(context: Context) -> Check:
    """No measurement; whether it is a failure depends on whether hosts were expected."""
    reason = "one rank: busbw is 0 by definition, nothing was measured"
    return failed("ranks.one", reason) if context.nodes_given else unknown("ranks.alone", reason)


def _is_excerpt(context: Context) -> bool:
    """Whether lines of a device list are missing, in a log that lacks other parts too."""
    if context.log.missing is not None:
        return True
    if context.is_whole:
        return False
    counted = [int(n) for n in context.evidence.communicators]
    return any(
        len(run.preamble.ranks) < max([r.rank + 1 for r in run.preamble.ranks] + counted)
        or next(_factor(run), None) is not None
        for run in context.judged
    )


def _listed(run: Run, context: Context) -> Iterator[Check]:
    """Check that the device list is complete."""
    listed = run.preamble.ranks
    first, numbers = listed[0].at, {r.rank for r in listed}
    if any(r.group for r in listed):
        reason = "the ranks are split into groups (NCCL_TESTS_SPLIT): busbw is that of a group"
        yield failed("ranks.split", reason, first)
    if numbers != set(range(len(listed))):
        reason = f"the device list has gaps: {len(listed)} lines, highest rank {max(numbers)}"
        yield failed("ranks.gaps", reason, first)
    each = run.preamble.banner.ranks_per_process if run.preamble.banner is not None else None
    # processes in containers may have the same pid; their ranks are then counted together
    found = Counter((r.host, r.pid) for r in listed)
    for rank in listed if each else ():
        if found[rank.host, rank.pid] % (each or 1):
            has = f"pid {rank.pid} of {rank.host} has {found[rank.host, rank.pid]} ranks"
            yield failed("ranks.gaps", f"{has}, the arguments give it {each}", rank.at)
    if (shared := _shared_gpu(listed)) is not None:
        reason = f"a GPU is listed twice: device {shared.device} [{shared.bus}] of {shared.host}"
        yield failed("ranks.gpu_listed_twice", reason, shared.at)
    if len(listed) != context.ranks:
        reason = f"tables of {context.ranks} and of {len(listed)} ranks in one log"
        yield failed("ranks.tables_differ", reason, first)


def _shared_gpu(listed: list[Rank]) -> Rank | None:
    """The first rank on a GPU that another rank of its host has, if the list distinguishes GPUs.

    With one visible GPU per process (NCCL_TESTS_DEVICE=0) all indices are equal, and a bus id without its PCI
    domain may be equal too: then the list says nothing. NCCL itself refuses a GPU that is used twice.
    """
    of_host: dict[str, set[tuple[int, str]]] = {}
    for rank in listed:
        of_host.setdefault(rank.host, set()).add((rank.device, rank.bus))
    seen: set[tuple[str, int, str]] = set()
    for rank in listed:
        gpu = (rank.host, rank.device, rank.bus)
        if gpu in seen and (len(of_host[rank.host]) > 1 or rank.bus.count(":") > 1):
            return rank
        seen.add(gpu)
    return None


def _hosts(run: Run, context: Context) -> Iterator[Check]:
    """Check that the hosts and GPUs are the expected ones."""
    listed, want = run.preamble.ranks, context.expectation
    first = listed[0].at
    hosts = Counter(r.host for r in listed)
    if want.nodes is not None and len(hosts) != want.nodes:
        reason = f"{len(hosts)} hosts took part, expected {want.nodes}: {', '.join(sorted(hosts)[:8])}"
        yield failed("ranks.wrong_nodes", reason, first)
    expected = {short(h) for h in want.hosts}
    if expected and {short(h) for h in hosts} != expected:
        missing = sorted(expected - {short(h) for h in hosts})
        reason = f"other hosts took part than expected; missing: {', '.join(missing[:8])}"
        yield failed("ranks.other_hosts", reason, first)
    odd = next((h for h, n in hosts.items() if n != want.gpus_per_node), None)
    if want.gpus_per_node is not None and odd is not None:
        reason = f"{odd} has {hosts[odd]} ranks, expected {want.gpus_per_node}"
        yield failed("ranks.wrong_per_node", reason, first)
    for rank in listed if want.gpu else ():
        if is_gpu(rank.gpu, want.gpu or "") is False:
            joined = " joined by NVLink" if want.nvlink_gbps else ""
            reason = f"rank {rank.rank} is on {rank.gpu}, expected {want.gpu}{joined}"
            yield failed("ranks.other_gpu", reason, rank.at)


def _unknown_gpu(run: Run, wanted: str | None) -> Iterator[Check]:
    """Find a rank whose GPU has an unknown name, so that it may be any GPU."""
    for rank in run.preamble.ranks:
        if wanted and is_gpu(rank.gpu, wanted) is None:
            name = f"'{rank.gpu}', which is not known" if rank.gpu else "not named"
            reason = f"the GPU of rank {rank.rank} is {name}: it is not shown to be {wanted}"
            yield unknown("ranks.unknown_gpu", reason, rank.at)


def _counted_by_nccl(context: Context) -> Iterator[Check]:
    """Check NCCL's own counts, if they were printed."""
    evidence, n = context.evidence, context.ranks
    for nranks, up in evidence.initialized.items():
        if nranks != n:
            reason = f"NCCL built a communicator of {nranks} ranks, the device list has {n}"
            yield failed("ranks.other_communicator", reason)
        if missing := sorted(set(range(nranks)) - up):
            reason = f"{len(missing)} of {nranks} ranks did not come up (Init COMPLETE): {missing[0]}"
            yield failed("ranks.not_all_up", reason)
    for ranks, line in evidence.communicators.items():
        if int(ranks) != n:
            reason = f"NCCL names a communicator of {ranks} ranks, the device list has {n}"
            yield failed("ranks.other_communicator", reason, line)
    system = context.expectation.system
    of_hosts = {n for run in context.judged for n in Counter(r.host for r in run.preamble.ranks).values()}
    for ranks, line in evidence.local_ranks.items():
        # hosts that share NVLink may count as one
        if system is not None and system.hosts_per_domain <= 1 and int(ranks) not in of_hosts:
            reason = f"NCCL counts {ranks} ranks on a host, the device list {min(of_hosts)}"
            yield failed("ranks.other_count", reason, line)
    for (nranks, nodes), line in evidence.counts.items():
        # a rack of MNNVL hosts may count as its hosts or as one
        if nranks != n or nodes not in {context.nodes, context.domains}:
            reason = f"NCCL counts {nranks} ranks on {nodes} nodes, the device list {n} on {context.nodes}"
            yield failed("ranks.other_count", reason, line)
    absent = sorted(set(range(n or 0)) - evidence.destroyed.get(n or 0, set()))
    if absent and 2 * len(absent) < (n or 0) and context.is_whole:
        reason = f"rank {absent[0]} ({len(absent)} of {n}) did not come to its end (Destroy COMPLETE)"
        yield unknown("ranks.not_destroyed", reason)


def _factor(run: Run) -> Iterator[Check]:
    """Check that busbw = algbw x k(n) in every measurement, with n ranks as the program assumed."""
    name, n = infer(run).name, len(run.preamble.ranks)
    if name is None:
        reason = "the collective is not known, so busbw does not tell the number of ranks"
        yield failed("ranks.collective_unknown", reason)
        return
    if n < 2:
        yield failed("ranks.one", "one rank: busbw is 0 by definition, nothing was measured")
    k = 1.0 if is_scaled(run) else factor(name, n)
    for row in run.rows:
        odd = next((m for m in row.measurements if not _fits(m, k)), None)
        if odd is not None:
            reason = (
                f"line {row.at.line}: busbw/algbw {odd.busbw}/{odd.algbw} does not fit {n} ranks, {name} "
                f"({k:.4f}): another number of ranks was measured, or the row was changed"
            )
            yield failed("ranks.other_factor", reason, row.at)


def _fits(measurement: Measurement, k: float) -> bool:
    algbw, busbw = number(measurement.algbw), number(measurement.busbw)
    if algbw is None or busbw is None:
        return False
    # each printed value is off by half its last digit at most
    slack = rounding(measurement.busbw) + k * rounding(measurement.algbw)
    return abs(busbw - k * algbw) <= slack * 1.05


def _implied(run: Run) -> int | None:
    """Ranks that busbw/algbw implies, for a reader of an all_reduce without a device list."""
    k = ratio(run)
    if infer(run).name != "all_reduce" or k is None or k >= 2:
        return None
    return round(2 / (2 - k))
