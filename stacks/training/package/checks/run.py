"""Checks on the run itself: the outcome of the job, the completeness of the log, and the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from busbar.judge.checks import job_check
from stacks.training.package.checks.context import Context
from stacks.training.package.checks.result import Check, failed, passed, unknown
from stacks.training.package.log import SCHEMA, Attempt


def job(context: Context) -> Check | None:
    """Check that the job that printed the log succeeded. None if only a log was given."""
    return job_check(Check.of, context.outcome)


def log(context: Context) -> Check:
    """Check that the log has every record from the first start to the end, and every step."""
    attempts, last = context.log.attempts, context.last
    if last is None:
        return unknown("log.no_run", _never_started(context))
    other = next((a.start.schema_ for a in attempts if a.start.schema_ != SCHEMA), None)
    if other is not None:
        return unknown("log.other_schema", f"records of schema {other}, expected {SCHEMA}")
    damage = [*context.missing, *context.log.problems]
    if damage:
        return unknown("log.damaged", "the log is not complete: " + "; ".join(damage[:4]))
    if last.end is None:
        at = last.steps[-1].step if last.steps else 0
        reason = f"the run ended after step {at} of {last.start.steps}, without its last record{_hint(last)}"
        return failed("log.no_end", reason)
    wanted = context.expectation.steps
    if last.end.step != wanted or last.start.steps != wanted:
        return failed("log.steps_missing", f"the run has {last.end.step} steps, expected {wanted}")
    for attempt in attempts:
        first = attempt.resume.step + 1 if attempt.resume else 1
        numbers = [step.step for step in attempt.steps]
        if numbers != list(range(first, first + len(numbers))):
            return failed("log.steps_missing", f"steps {numbers[:8]}... do not follow from step {first - 1}")
    if not last.steps or last.steps[-1].step != wanted:
        return failed("log.steps_missing", f"step {wanted}, the last one, is missing")
    return passed("log.whole", f"{wanted} steps in {len(attempts)} starts, to the last record")


def ranks(context: Context) -> Check:
    """Check that all ranks took part in every start, on the expected workers, devices and backend."""
    if not context.log.attempts:
        return unknown("ranks.wrong_count", "the run never started: who took part is not known")
    for attempt in context.log.attempts:
        if problem := next(_problems(attempt, context), None):
            return problem
    want, torch = context.expectation, context.log.attempts[-1].start.torch
    return passed(
        "ranks.complete",
        f"{want.world_size} ranks on {len(want.nodes)} workers, {want.backend}, torch {torch}",
    )


def _problems(attempt: Attempt, context: Context) -> Iterator[Check]:
    want, start = context.expectation, attempt.start
    if start.backend != want.backend:
        yield failed("ranks.other_backend", f"backend {start.backend}, expected {want.backend}")
    listed = sum(host.ranks for host in attempt.hosts)
    if start.world_size != want.world_size or listed != want.world_size:
        found = f"{start.world_size} ranks took part, {listed} are listed"
        yield failed("ranks.wrong_count", f"{found}, expected {want.world_size}")
    first_ranks = [host.first_rank for host in attempt.hosts]
    if first_ranks != [sum(host.ranks for host in attempt.hosts[:i]) for i in range(len(first_ranks))]:
        yield failed("ranks.wrong_count", f"the hosts' first ranks {first_ranks[:8]} leave gaps")
    nodes = sorted(host.node for host in attempt.hosts)
    if nodes != sorted(want.nodes):
        expected = ", ".join(sorted(want.nodes)[:8])
        yield failed("ranks.other_nodes", f"the ranks ran on {', '.join(nodes[:8])}, expected {expected}")
    for host in attempt.hosts:
        if host.ranks != want.ranks_per_node:
            found = f"{host.node or host.pod} has {host.ranks} ranks"
            yield failed("ranks.wrong_per_node", f"{found}, expected {want.ranks_per_node}")
        if want.device and want.device not in host.device:
            found = f"{host.node or host.pod} trained on {host.device}"
            yield failed("ranks.other_device", f"{found}, expected {want.device}")


def _never_started(context: Context) -> str:
    before = context.log.before
    if before.runs:
        return "this is a log of nccl-tests, not of a training run. Fix: busbar nccl check FILE"
    why = "; ".join([*context.missing, *(f"{line.name}: {line.meaning}" for line in before.known_lines[:2])])
    return f"no record of a start: nothing was trained{f' ({why})' if why else ''}"


def _hint(attempt: Attempt) -> str:
    known = attempt.nccl.known_lines
    return f" ({known[0].name}: {known[0].meaning})" if known else ""
