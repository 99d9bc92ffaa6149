"""Gate on the ranks: device list, NCCL's own counts, and the factor between busbw and algbw."""

from __future__ import annotations

from collections import Counter

from busbar.judge.nccl.checks.context import Check, Context, failed, passed, unknown
from busbar.judge.nccl.expected.system import is_gpu
from busbar.judge.nccl.log.reader import short
from busbar.judge.nccl.log.records import Measurement, Rank, Run, number, rounding
from busbar.judge.nccl.log.tables import factor, infer, is_scaled, ratio
from busbar.text import counted

# codes that a device list with missing lines causes
OF_LISTS = (
    "ranks.gaps", "ranks.tables_differ", "ranks.wrong_nodes", "ranks.other_hosts",
    "ranks.wrong_per_node", "ranks.other_factor", "ranks.one", "ranks.other_communicator",
    "ranks.not_all_up", "ranks.other_count",
)  # fmt: skip


def ranks(context: Context) -> Check:
    """Check that ranks 0..n-1 occur once, on the expected hosts, and that all numbers agree with n."""
    if any(r.has_several_programs for r in context.log.runs):
        return failed(
            "ranks.several_programs",
            "several programs wrote this log: MPI was not effective (built without MPI=1?)",
        )
    if not context.judged:
        return unknown("ranks.no_table", "no table to judge")
    if any(r.is_one_rank for r in context.judged):
        return _one_rank(context)
    without = [r for r in context.judged if not r.preamble.ranks]
    if without:
        n = _implied(context.judged[0])
        hint = f"; busbw/algbw implies {n} ranks" if n else ""
        return unknown(
            "ranks.no_device_list", f"no device list before a table: who took part is not known{hint}"
        )
    found = (_listed(r, context) or _hosts(r, context) or _factor(r) for r in context.judged)
    problem = next(filter(None, found), None) or _counted_by_nccl(context)
    names = {r.host for r in context.listed}
    counted_nodes = max((nodes for _, nodes in context.evidence.counts), default=0)
    if problem and problem.status == "fail" and len(names) < counted_nodes:
        reason = f"{problem.reason}; NCCL counts {counted_nodes} nodes, so some hosts have the same name"
        return unknown(problem.code, reason, next(iter(context.evidence.counts.values())))
    if problem and problem.code in OF_LISTS and _is_excerpt(context):
        return unknown("ranks.excerpt", f"{problem.reason}; parts of the log are missing")
    if problem and problem.code == "ranks.one":
        return _one_rank(context)
    unsure = (_unknown_gpu(run, context.expectation.gpu) for run in context.judged)
    problem = problem or next(filter(None, unsure), None)
    if problem:
        return problem
    enforced = "" if context.nodes_given else " by the log's own device list (pass --expect-nodes to enforce)"
    last = context.judged[0].preamble.ranks[-1]
    reason = f"{counted(context.ranks, 'rank')} on {counted(context.nodes, 'host')}{enforced}"
    return passed("ranks.complete", reason, last.as_line)


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
        or _factor(run) is not None
        for run in context.judged
    )


def _listed(run: Run, context: Context) -> Check | None:
    """Check that the device list is complete."""
    listed = run.preamble.ranks
    first = listed[0].as_line
    numbers = {r.rank for r in listed}
    if any(r.group for r in listed):
        reason = "the ranks are split into groups (NCCL_TESTS_SPLIT): busbw is that of a group"
        return failed("ranks.split", reason, first)
    if numbers != set(range(len(listed))):
        reason = f"the device list has gaps: {len(listed)} lines, highest rank {max(numbers)}"
        return failed("ranks.gaps", reason, first)
    odd = _odd_process(run)
    if odd is not None:
        return odd
    shared = _shared_gpu(listed)
    if shared is not None:
        reason = f"a GPU is listed twice: device {shared.device} [{shared.bus}] of {shared.host}"
        return failed("ranks.gpu_listed_twice", reason, shared.as_line)
    if len(listed) != context.ranks:
        reason = f"tables of {context.ranks} and of {len(listed)} ranks in one log"
        return failed("ranks.tables_differ", reason, first)
    return None


def _odd_process(run: Run) -> Check | None:
    """Find a process with fewer ranks in the device list than in the arguments.

    Processes in containers may have the same pid; their ranks are then counted together.
    """
    each = run.preamble.banner.ranks_per_process if run.preamble.banner is not None else None
    if not each:
        return None
    found = Counter((r.host, r.pid) for r in run.preamble.ranks)
    for rank in run.preamble.ranks:
        number_of_ranks = found[rank.host, rank.pid]
        if number_of_ranks % each:
            reason = (
                f"pid {rank.pid} of {rank.host} has {number_of_ranks} ranks, the arguments give it {each}"
            )
            return failed("ranks.gaps", reason, rank.as_line)
    return None


def _shared_gpu(listed: list[Rank]) -> Rank | None:
    """The first rank on a GPU that another rank of its host has, if the list distinguishes GPUs.

    With one visible GPU per process (NCCL_TESTS_DEVICE=0) all indices are equal, and a bus id without its PCI
    domain may be equal too: then the list says nothing. NCCL itself refuses a GPU that is used twice.
    """
    of_host: dict[str, list[Rank]] = {}
    for rank in listed:
        of_host.setdefault(rank.host, []).append(rank)
    for ranks_of_host in of_host.values():
        tells = len({(r.device, r.bus) for r in ranks_of_host}) > 1
        seen: set[tuple[int, str]] = set()
        for rank in ranks_of_host:
            gpu = (rank.device, rank.bus)
            if gpu in seen and (tells or rank.bus.count(":") > 1):
                return rank
            seen.add(gpu)
    return None


def _hosts(run: Run, context: Context) -> Check | None:
    """Check that the hosts and GPUs are the expected ones."""
    listed, want = run.preamble.ranks, context.expectation
    first = listed[0].as_line
    hosts = Counter(r.host for r in listed)
    if want.nodes is not None and len(hosts) != want.nodes:
        names = ", ".join(sorted(hosts)[:8])
        return failed(
            "ranks.wrong_nodes", f"{len(hosts)} hosts took part, expected {want.nodes}: {names}", first
        )
    if want.hosts and {short(h) for h in hosts} != {short(h) for h in want.hosts}:
        missing = sorted({short(h) for h in want.hosts} - {short(h) for h in hosts})
        reason = f"other hosts took part than expected; missing: {', '.join(missing[:8])}"
        return failed("ranks.other_hosts", reason, first)
    if want.gpus_per_node is not None and set(hosts.values()) != {want.gpus_per_node}:
        odd = next(h for h, n in hosts.items() if n != want.gpus_per_node)
        reason = f"{odd} has {hosts[odd]} ranks, expected {want.gpus_per_node}"
        return failed("ranks.wrong_per_node", reason, first)
    if want.gpu:
        other = next((r for r in listed if is_gpu(r.gpu, want.gpu) is False), None)
        if other is not None:
            joined = " joined by NVLink" if want.nvlink_gbps else ""
            reason = f"rank {other.rank} is on {other.gpu}, expected {want.gpu}{joined}"
            return failed("ranks.other_gpu", reason, other.as_line)
    return None


def _unknown_gpu(run: Run, wanted: str | None) -> Check | None:
    """Find a rank whose GPU has an unknown name, so that it may be any GPU."""
    strange = next((r for r in run.preamble.ranks if wanted and is_gpu(r.gpu, wanted) is None), None)
    if strange is None:
        return None
    name = f"'{strange.gpu}', which is not known" if strange.gpu else "not named"
    reason = f"the GPU of rank {strange.rank} is {name}: it is not shown to be {wanted}"
    return unknown("ranks.unknown_gpu", reason, strange.as_line)


def _counted_by_nccl(context: Context) -> Check | None:
    """Check NCCL's own counts, if they were printed."""
    evidence, n = context.evidence, context.ranks
    for nranks, up in evidence.initialized.items():
        if nranks != n:
            return failed(
                "ranks.other_communicator",
                f"NCCL built a communicator of {nranks} ranks, the device list has {n}",
            )
        missing = sorted(set(range(nranks)) - up)
        if missing:
            reason = f"{len(missing)} of {nranks} ranks did not come up (Init COMPLETE): {missing[0]}"
            return failed("ranks.not_all_up", reason)
    for ranks, line in evidence.communicators.items():
        if int(ranks) != n:
            reason = f"NCCL names a communicator of {ranks} ranks, the device list has {n}"
            return failed("ranks.other_communicator", reason, line)
    problem = _counted_on_hosts(context)
    if problem:
        return problem
    for (nranks, nodes), line in evidence.counts.items():
        # a rack of MNNVL hosts may count as its hosts or as one
        if nranks != n or nodes not in {context.nodes, context.domains}:
            return failed(
                "ranks.other_count",
                f"NCCL counts {nranks} ranks on {nodes} nodes, the device list {n} on {context.nodes}",
                line,
            )
    absent = sorted(set(range(n or 0)) - evidence.destroyed.get(n or 0, set()))
    if absent and 2 * len(absent) < (n or 0) and context.is_whole:
        reason = f"{len(absent)} of {n} ranks did not come to their end (Destroy COMPLETE): {absent[0]}"
        return unknown("ranks.not_destroyed", reason)
    return None


def _counted_on_hosts(context: Context) -> Check | None:
    """Check NCCL's counts of the ranks per host. Hosts that share NVLink may count as one."""
    system = context.expectation.system
    if system is None or system.hosts_per_domain > 1:
        return None
    listed = {n for run in context.judged for n in Counter(r.host for r in run.preamble.ranks).values()}
    for ranks, line in context.evidence.local_ranks.items():
        if int(ranks) not in listed:
            reason = f"NCCL counts {ranks} ranks on a host, the device list {min(listed)}"
            return failed("ranks.other_count", reason, line)
    return None


def _factor(run: Run) -> Check | None:
    """Check that busbw = algbw x k(n) in every measurement, with n ranks as the program assumed."""
    name, n = infer(run).name, len(run.preamble.ranks)
    if name is None:
        return failed(
            "ranks.collective_unknown",
            "the collective is not known, so busbw does not tell the number of ranks",
        )
    if n < 2:
        return failed("ranks.one", "one rank: busbw is 0 by definition, nothing was measured")
    k = 1.0 if is_scaled(run) else factor(name, n)
    for row in run.rows:
        for measurement in row.measurements:
            if not _fits(measurement, k):
                return failed(
                    "ranks.other_factor",
                    f"line {row.line}: busbw/algbw {measurement.busbw}/{measurement.algbw} does not fit {n} "
                    f"ranks, {name} ({k:.4f}): another number of ranks was measured",
                    row.as_line,
                )
    return None


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
