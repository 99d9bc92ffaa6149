"""The verdict on a training run: every check, in the order in which trust is built, and the measured values.

A check is a function of the run: None where it does not apply, "unknown" without its evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from pydantic import Field

from busbar.judge import checks as shared
from busbar.judge.checks import Check, JobOutcome, Status, by_status, conclusion, job_check, run_all
from busbar.judge.nccl.checks.context import Check as NcclCheck
from busbar.judge.nccl.checks.context import build
from busbar.judge.nccl.checks.setup import gdrdma, mnnvl, nccl_version, plugin, rails
from busbar.judge.nccl.checks.tables import warnings
from busbar.judge.nccl.checks.transport import transport
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.reader import Proof
from busbar.judge.nccl.log.records import Banner, LogLine, Preamble, Rank
from busbar.judge.nccl.log.records import Run as Table
from busbar.models import OutputModel
from stacks.training.package import log as records
from stacks.training.package.log import Attempt, Checkpoint, Timing, TrainingLog
from stacks.training.package.target import Expectation

SCHEMA: Literal[2] = 2
"""The schema of verdict.json."""

GB, MIB = 1e9, 1 << 20
# Number of steps at each end for the mean loss: one step's loss depends on its batch.
WINDOW = 3
# Among thousands of float32 losses two may be equal by chance; with equal batches all are equal.
DISTINCT_SHARE = 0.9
# In the same step from the same state, only the order of sums may differ.
SAME_LOSS = 1e-3
GATES = (transport, gdrdma, mnnvl, nccl_version, plugin, warnings)

passed, failed, unknown, not_required = by_status(Check.of)


@dataclass
class Run:
    """The input of all checks. `missing`: parts of the log that could not be read, one sentence each."""

    log: TrainingLog
    want: Expectation
    outcome: JobOutcome | None = None  # None: only a log was given
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        starts = self.starts = self.log.attempts
        self.first, self.last = next(iter(starts), None), next(reversed(starts), None)
        # The first attempt, if it ended with the kill of a rank.
        self.killed = self.first if self.first and self.first.kill else None
        self.written = self.killed.checkpoint if self.killed else None
        self.timing = self.last.timing if self.last else None
        # In the order of the log; repeated steps occur twice.
        self.steps = [step for attempt in starts for step in attempt.steps]


def job(run: Run) -> Check | None:
    """Check that the job that printed the log succeeded."""
    return job_check(Check.of, run.outcome)


def log(run: Run) -> Check:
    """Check that the log has every record from the first start to the end, and every step."""
    if run.last is None:
        return unknown("log.no_run", _never_started(run))
    for other in (start.start.schema_ for start in run.starts if start.start.schema_ != records.SCHEMA):
        return unknown("log.other_schema", f"records of schema {other}, expected {records.SCHEMA}")
    if damage := [*run.missing, *run.log.problems]:
        return unknown("log.damaged", "the log is not complete: " + "; ".join(damage[:4]))
    wanted, last = run.want.steps, run.last
    if last.end is None:
        at = last.steps[-1].step if last.steps else 0
        hint = "".join(f" ({known.rule.name}: {known.rule.meaning})" for known in last.nccl.known_lines[:1])
        reason = f"the run ended after step {at} of {last.start.steps}, without its last record{hint}"
        return failed("log.no_end", reason)
    if last.end.step != wanted or last.start.steps != wanted:
        return failed("log.steps_missing", f"the run has {last.end.step} steps, expected {wanted}")
    for start in run.starts:
        first = start.resume.step + 1 if start.resume else 1
        numbers = [step.step for step in start.steps]
        if numbers != list(range(first, first + len(numbers))):
            return failed("log.steps_missing", f"steps {numbers[:8]}... do not follow from step {first - 1}")
    if not last.steps or last.steps[-1].step != wanted:
        return failed("log.steps_missing", f"step {wanted}, the last one, is missing")
    return passed("log.whole", f"{wanted} steps in {len(run.starts)} starts, to the last record")


def _never_started(run: Run) -> str:
    before = run.log.before
    if before.runs:
        return "this is a log of nccl-tests, not of a training run. Fix: busbar nccl check FILE"
    rules = [line.rule for line in before.known_lines[:2]]
    why = "; ".join([*run.missing, *(f"{rule.name}: {rule.meaning}" for rule in rules)])
    return f"no record of a start: nothing was trained{f' ({why})' if why else ''}"


def ranks(run: Run) -> Check:
    """Check that all ranks took part in every start, on the expected workers, devices and backend."""
    if run.last is None:
        return unknown("ranks.wrong_count", "the run never started: who took part is not known")
    for code, reason in (problem for start in run.starts for problem in _misplaced(start, run.want)):
        return failed(code, reason)
    want = run.want
    where = f"{want.world_size} ranks on {len(want.nodes)} workers"
    return passed("ranks.complete", f"{where}, {want.backend}, torch {run.last.start.torch}")


def _misplaced(attempt: Attempt, want: Expectation) -> Iterator[tuple[str, str]]:
    """The code and the reason of each difference."""
    start, hosts = attempt.start, attempt.hosts
    if start.backend != want.backend:
        yield "ranks.other_backend", f"backend {start.backend}, expected {want.backend}"
    listed = sum(host.ranks for host in hosts)
    if start.world_size != want.world_size or listed != want.world_size:
        found = f"{start.world_size} ranks took part, {listed} are listed"
        yield "ranks.wrong_count", f"{found}, expected {want.world_size}"
    firsts = [host.first_rank for host in hosts]
    if firsts != [sum(host.ranks for host in hosts[:i]) for i in range(len(hosts))]:
        yield "ranks.wrong_count", f"the hosts' first ranks {firsts[:8]} leave gaps"
    nodes, wanted = sorted(host.node for host in hosts), sorted(want.nodes)
    if nodes != wanted:
        found = f"the ranks ran on {', '.join(nodes[:8])}"
        yield "ranks.other_nodes", f"{found}, expected {', '.join(wanted[:8])}"
    for host in hosts:
        name = host.node or host.pod
        if host.ranks != want.ranks_per_node:
            yield "ranks.wrong_per_node", f"{name} has {host.ranks} ranks, expected {want.ranks_per_node}"
        if want.device and want.device not in host.device:
            yield "ranks.other_device", f"{name} trained on {host.device}, expected {want.device}"


def fabric(run: Run) -> Check:
    """Check by NCCL's messages that in every start each edge between hosts used the expected transport."""
    wanted = run.want.fabric.transport
    if run.want.backend == "gloo":
        if wanted == "socket":
            return not_required("fabric.not_required", "gloo: TCP, as the pool's own measurement")
        return unknown("fabric.gloo", f"gloo uses TCP, expected {wanted}")
    if run.last is None:
        return unknown("fabric.no_messages", "the run never started: nothing is known of its transport")
    for number, start in enumerate(run.starts, 1):
        if problem := _transport_problem(start, run.want):
            return problem.model_copy(update={"reason": f"start {number}: {problem.reason}"})
    edge = run.last.nccl.evidence.first_edge()
    return passed("fabric.proven", f"{wanted} in all {len(run.starts)} starts", edge.text if edge else None)


def _transport_problem(attempt: Attempt, want: Expectation) -> Check | None:
    evidence, found = attempt.nccl.evidence, _judged_by_nccl(attempt, want)
    silent = sorted(set(range(want.world_size)) - attempt.nccl_ranks)
    if silent or not evidence.speaks:
        # A line that shows TCP counts even if others are missing.
        whose = f"rank {silent[0]} and {len(silent) - 1} more" if silent else "any rank"
        return _first(found, "fail") or unknown("fabric.no_messages", f"no messages of NCCL from {whose}")
    up = len(evidence.initialized.get(want.world_size, ()))
    if up != want.world_size:
        reason = f"{up} of {want.world_size} ranks came up (Init COMPLETE) in one communicator of all"
        return unknown("fabric.not_all_up", reason)
    return _first(found, "fail") or _first(found, "unknown")


def _first(found: list[NcclCheck], status: Status) -> Check | None:
    code = {"fail": "fabric.failed", "unknown": "fabric.unknown"}[status]
    of_status = (check for check in found if check.status == status)
    return next((Check.of(status, code, f"{c.name}: {c.reason}", c.evidence) for c in of_status), None)


def _judged_by_nccl(attempt: Attempt, want: Expectation) -> list[NcclCheck]:
    """The gates of busbar.judge.nccl on the attempt, as on a table of the ranks that must have messages.

    The banner and the average mark a complete log, which the program's line counts have shown.
    """
    at = LogLine("", 0, "")
    listed = [
        Rank(rank=host.first_rank + i, group=0, pid=0, host=host.pod, device=i, gpu=host.device, at=at)
        for host in attempt.hosts
        for i in range(host.ranks)
    ]
    table = Table(Preamble(banner=Banner(0, 0, 0, "", at), ranks=listed), 0, avg="0")
    proof = Proof(own=attempt.nccl.evidence, loose=Evidence())
    found = replace(build(attempt.nccl, want.fabric), tables={"training": [table]}, proof=proof)
    return [gate(found) for gate in ((*GATES, rails) if want.fabric.rails else GATES)]


def data(run: Run) -> Check:
    """Check that ranks trained on different data: with the same data, equal gradients prove nothing."""
    if not run.steps:
        return unknown("data.same", "no step: nothing is known of the data")
    world = run.want.world_size
    for step in run.steps:
        if step.distinct_losses < math.ceil(DISTINCT_SHARE * world):
            found = f"step {step.step}: {step.distinct_losses} different losses on {world} ranks"
            return failed("data.same", f"{found}: ranks trained on the same data")
    return passed("data.distinct", "every rank trained on its own data")


def loss(run: Run) -> Check:
    """Check that the mean loss of the last steps is below that of the first ones by the expected part."""
    for step in run.steps:
        if isinstance(step.loss, str) or not math.isfinite(step.loss):
            return failed("loss.not_finite", f"the loss of step {step.step} is {step.loss}")
    values = [float(step.loss) for step in run.steps]
    if len(values) < 2 * WINDOW:
        return unknown("loss.not_falling", f"{len(values)} steps are too few to tell")
    first, last = sum(values[:WINDOW]) / WINDOW, sum(values[-WINDOW:]) / WINDOW
    limit = (1 - run.want.min_loss_drop) * first
    said = f"the loss went from {first:.4g} to {last:.4g}"
    if not last <= limit:
        return failed("loss.not_falling", f"{said}, expected at most {limit:.4g}")
    return passed("loss.falls", said)


def gradients(run: Run) -> Check:
    """Check that all ranks have bitwise equal gradients after every step, and equal parameters at the end."""
    if not run.steps or run.last is None or run.last.end is None:
        return unknown("gradients.ranks_missing", "no step, or no end: nothing is known of the gradients")
    world = run.want.world_size
    of_steps = [(f"gradients of step {step.step}", step.gradients) for step in run.steps]
    for what, digests in [*of_steps, ("parameters at the end", run.last.end.parameters)]:
        if (known := sum(digests.values())) != world:
            reason = f"the {what} are known of {known} ranks, expected {world}"
            return failed("gradients.ranks_missing", reason)
        if len(digests) != 1:
            kinds = ", ".join(f"{n} ranks {digest}" for digest, n in sorted(digests.items())[:4])
            return failed("gradients.differ", f"the {what} differ: {kinds}")
    if len({digest for step in run.steps for digest in step.gradients}) == 1:
        return failed("gradients.constant", "the gradients are the same in every step: nothing was learned")
    reason = f"the same on all {world} ranks in {len(run.steps)} steps; so are the parameters"
    return passed("gradients.agree", reason)


def checkpoint(run: Run) -> Check:
    """Check that a checkpoint was written before the kill, and has parameters and momentum."""
    if run.killed is None or run.written is None:
        return unknown("checkpoint.missing", "no checkpoint was written before a rank was killed")
    size, least = run.written.bytes, 2 * run.killed.start.gradient_bytes
    if size < least:
        reason = f"the checkpoint has {size} bytes, parameters and momentum have {least}"
        return failed("checkpoint.too_small", reason)
    rate = size / run.written.seconds / MIB
    return passed("checkpoint.written", f"{size / MIB:.0f} MiB at {rate:.0f} MiB/s, synced to the disk")


def recovery(run: Run) -> Check:
    """Check that after the kill of a rank all ranks restarted, resumed from the checkpoint and continued."""
    if run.killed is None:
        anew = ": the run began with the checkpoint of another one" if run.first and run.first.resume else ""
        return unknown("recovery.not_killed", f"no rank was killed{anew}: what survives is not known")
    if len(run.starts) == 1:
        return failed("recovery.not_restarted", "a rank was killed, and the run did not start again")
    if run.written is None:
        return unknown("recovery.other_checkpoint", "no checkpoint to resume from")
    for start in run.starts[1:]:
        if problem := _other_state(start, run.written, run.want) or _other_losses(start, run.killed):
            return problem
    # Ranks may fail, and start again, because others start again; not once all have repeated their steps.
    for start in run.starts[1:-1]:
        if start.steps and start.steps[-1].step > run.killed.steps[-1].step:
            reason = f"the ranks failed again after step {start.steps[-1].step}, without a kill"
            return failed("recovery.failed_again", reason)
    resumed = f"after the kill the run resumed from step {run.written.step}"
    return passed("recovery.resumed", f"{resumed}, and repeated its steps with the same loss")


def _other_state(attempt: Attempt, written: Checkpoint, want: Expectation) -> Check | None:
    resume, hosts = attempt.resume, len(want.nodes)
    if resume is None:
        return failed("recovery.started_anew", "after the kill the run began anew: it found no checkpoint")
    if (resume.step, resume.sha256) != (written.step, written.sha256):
        found = f"step {resume.step}, sha256 {resume.sha256[:12]}"
        reason = f"the run resumed from {found}, written was step {written.step}, {written.sha256[:12]}"
        return failed("recovery.other_checkpoint", reason)
    if want.shared_checkpoint and resume.files != {written.sha256: hosts}:
        reason = f"{resume.files.get(written.sha256, 0)} of {hosts} workers see the checkpoint's file"
        return failed("recovery.not_shared", f"{reason}: the storage is not shared")
    return None


def _other_losses(attempt: Attempt, killed: Attempt) -> Check | None:
    """Check that steps in both attempts have the same loss."""
    before = {step.step: step.loss for step in killed.steps}
    repeated = [(step.step, before[step.step], step.loss) for step in attempt.steps if step.step in before]
    if not repeated:
        return unknown("recovery.other_loss", "no step was repeated: the loaded state is not compared")
    for step, was, now in repeated:
        if isinstance(was, str) or isinstance(now, str) or not abs(now - was) <= SAME_LOSS * abs(was):
            reason = f"step {step} had the loss {was}, and {now} after the resume"
            return failed("recovery.other_loss", f"{reason}: another state was loaded")
    return None


def allreduce(run: Run) -> Check:
    """Check that every element of every measured all-reduce had the right sum."""
    if run.timing is None:
        return unknown("allreduce.not_measured", "no all-reduce was measured")
    if run.timing.wrong:
        return failed("allreduce.wrong", f"{run.timing.wrong} elements have a wrong sum")
    return passed("allreduce.correct", f"every sum is right in {len(run.timing.allreduce_s)} all-reduces")


def busbw(run: Run) -> Check:
    """Check that the all-reduce of the gradients reaches the expected part of the bandwidth in nccl-tests."""
    timing, want = run.timing, run.want
    if timing is None:
        return unknown("busbw.not_measured", "no all-reduce was measured")
    if want.world_size < 2:
        return unknown("busbw.not_measured", "one rank: nothing is exchanged")
    if timing.bytes < want.gradient_bytes:
        reason = f"the all-reduce carried {timing.bytes} bytes, expected at least {want.gradient_bytes}"
        return failed("busbw.not_measured", reason)
    if want.busbw_gbps is None:
        return unknown("busbw.no_expectation", "no measured bandwidth to compare with")
    took, expected = median(timing.allreduce_s), _moved_gb(timing, want) / want.busbw_gbps
    found, limit = _moved_gb(timing, want) / took, want.min_busbw_fraction * want.busbw_gbps
    said = (
        f"the all-reduce of {timing.bytes} bytes took {took * 1e3:.3g} ms ({found:.4g} GB/s busbw); at the "
        f"measured {want.busbw_gbps:.4g} GB/s it takes {expected * 1e3:.3g} ms"
    )
    if found < limit:
        share = f"{want.min_busbw_fraction:g} of the measured busbw"
        return failed("busbw.too_low", f"{said}. Expected at least {share} ({limit:.4g} GB/s)")
    return passed("busbw.reached", said)


def _moved_gb(timing: Timing, want: Expectation) -> float:
    """The GB of an all-reduce by which busbw is counted (nccl-tests, doc/PERFORMANCE.md)."""
    return 2 * (want.world_size - 1) / want.world_size * timing.bytes / GB


CHECKS: tuple[Callable[[Run], Check | None], ...] = (
    job, log, ranks, fabric, data, loss, gradients, checkpoint, recovery, allreduce, busbw,
)  # fmt: skip


class Measured(shared.Verdict):
    """The part of a verdict that is exported. Times in seconds (medians), bandwidths in GB/s; None: unknown.

    `allreduce_share` is the time of the all-reduce as a part of the step, `exposed_share` the part of the
    step that its overlap with the computation does not hide.
    """

    schema_: Literal[2] = Field(default=SCHEMA, alias="schema")
    backend: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    torch: str | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    gradient_bytes: int | None = None
    step_seconds: float | None = None
    compute_seconds: float | None = None
    allreduce_seconds: float | None = None
    expected_allreduce_seconds: float | None = None
    allreduce_share: float | None = None
    exposed_share: float | None = None
    busbw_gbps: float | None = None
    measured_busbw_gbps: float | None = Field(default=None, description="by nccl-tests, at this size")
    busbw_fraction: float | None = None
    checkpoint_bytes: int | None = None
    checkpoint_seconds: float | None = None
    starts: int = 0


class Verdict(Measured):
    """The whole verdict."""

    checks: list[Check]
    expectation: dict[str, Any]


class Kept(OutputModel):
    """The part of a kept verdict by which a log is judged again."""

    schema_: Literal[2] = Field(alias="schema")
    expectation: Expectation


def judge(
    log: TrainingLog, want: Expectation, outcome: JobOutcome | None = None, missing: tuple[str, ...] = ()
) -> Verdict:
    """Judge a log that was read. `outcome`: of its job; `missing`: parts that could not be read."""
    run = Run(log, want, outcome, missing)
    found = run_all(CHECKS, run)
    return Verdict(
        **conclusion(found),
        **_values(run),
        checks=found,
        expectation=want.model_dump(mode="json", exclude_none=True),
    )


def _values(run: Run) -> dict[str, Any]:
    """The fields of Measured that are known."""
    last, timing, want = run.last, run.timing, run.want
    values: dict[str, Any] = {"starts": len(run.starts)}
    if last:
        values |= {"backend": last.start.backend, "ranks": last.start.world_size, "torch": last.start.torch}
        values["nodes"] = len(last.hosts)
    if losses := [float(step.loss) for step in run.steps if not isinstance(step.loss, str)]:
        values |= {"first_loss": losses[0], "last_loss": losses[-1]}
    if run.written:
        values |= {"checkpoint_bytes": run.written.bytes, "checkpoint_seconds": run.written.seconds}
    if timing is None:
        return values
    step, compute, reduce = (median(each) for each in (timing.step_s, timing.compute_s, timing.allreduce_s))
    values |= {
        "gradient_bytes": timing.bytes,
        "step_seconds": step,
        "compute_seconds": compute,
        "allreduce_seconds": reduce,
        "allreduce_share": reduce / step,
        "exposed_share": max(0.0, step - compute) / step,
    }
    if want.world_size > 1:
        values["busbw_gbps"] = found = _moved_gb(timing, want) / reduce
        if want.busbw_gbps is not None:
            values |= {"measured_busbw_gbps": want.busbw_gbps, "busbw_fraction": found / want.busbw_gbps}
            values["expected_allreduce_seconds"] = _moved_gb(timing, want) / want.busbw_gbps
    return values
