"""What makes a training run a pass, and each thing that keeps it from being one."""

from collections.abc import Callable
from typing import Any

import pytest

from busbar.judge.checks import JobOutcome
from stacks.training.package.log import read_lines
from stacks.training.package.verdict import CHECKS, Verdict, judge
from stacks.training.tests.unit.made import (
    GIB,
    RDMA,
    SHA256,
    STEPS,
    TCP,
    WORLD,
    changed,
    codes,
    expected,
    first,
    lines,
    record,
    second,
    starts,
    step,
    verdict,
    without,
)
from tests.support.gates import without_case


def test_a_run_that_shows_everything_passes() -> None:
    found = verdict()
    assert (found.verdict, found.reasons) == ("pass", [])
    assert {check.status for check in found.checks} == {"pass"}


def test_a_pass_carries_the_times_and_bandwidths_of_the_run() -> None:
    found = wrong("step", 1, loss=1.9)
    assert (found.first_loss, found.last_loss) == (step(1)["loss"], step(STEPS)["loss"])
    assert found.busbw_gbps == pytest.approx(2 * 15 / 16 * GIB / 0.00516 / 1e9)
    assert found.expected_allreduce_seconds == pytest.approx(2 * 15 / 16 * GIB / 390e9)
    assert found.allreduce_share == pytest.approx(0.258)
    assert found.exposed_share == pytest.approx(0.2)
    assert (found.ranks, found.nodes, found.starts) == (16, 2, 2)


def test_a_log_that_is_empty_or_cut_anywhere_is_never_a_pass() -> None:
    records = run()
    assert not [count for count in range(len(records)) if verdict(records[:count]).passed]
    nothing = judge(read_lines(()), expected())
    assert (nothing.verdict, nothing.busbw_gbps) == ("unknown", None)
    assert not any(check.status == "pass" for check in nothing.checks)


@pytest.mark.parametrize("kind", ["start", "host", "step", "checkpoint", "kill", "resume", "timing", "end"])
def test_a_run_without_one_kind_of_record_is_never_a_pass(kind: str) -> None:
    assert not verdict(without(run(), kind)).passed


def run() -> list[dict[str, Any]]:
    return [*first(), *second()]


def wrong(kind: str, index: int = 0, **values: Any) -> Verdict:
    """On a good run of which the `index`-th record of a kind has other values."""
    return verdict(changed(run(), kind, index, **values))


def everywhere(key: str, value: Any, **want: Any) -> Verdict:
    """On a good run of which every record with this key has this value."""
    return verdict([{**each, key: value} if key in each else each for each in run()], **want)


def ended(succeeded: bool | None) -> Verdict:
    return judge(read_lines(lines(run())), expected(), JobOutcome(succeeded))


def resumed(*later: dict[str, Any]) -> Verdict:
    """On a run that went on with these records after the kill."""
    return verdict([*first(), *later])


def anew() -> list[dict[str, Any]]:
    """A start that trains from the first step to the last."""
    return [*starts(), *(step(number) for number in range(1, STEPS + 1)), *second()[-2:]]


Case = Callable[[], Verdict]
# The first check that fails, or lacks its evidence, by its code.
FAILS: list[tuple[str, Case]] = [
    ("job.failed", lambda: ended(False)),
    ("log.steps_missing", lambda: wrong("end", step=STEPS - 1)),
    ("log.steps_missing", lambda: wrong("start", 1, steps=31)),
    ("log.steps_missing", lambda: verdict([each for each in run() if each.get("step") != 20])),
    ("ranks.other_nodes", lambda: wrong("host", node="gpu-9")),
    ("ranks.other_device", lambda: wrong("host", 1, device="NVIDIA A100-SXM4-80GB")),
    ("ranks.other_backend", lambda: wrong("start", 1, backend="gloo")),
    ("ranks.wrong_count", lambda: wrong("start", world_size=8)),
    ("ranks.wrong_count", lambda: wrong("host", 1, first_rank=9)),
    ("fabric.failed", lambda: verdict(nccl=TCP)),
    ("fabric.failed", lambda: verdict(nccl=RDMA.model_copy(update={"gdr": False}))),
    ("fabric.failed", lambda: verdict(nccl=RDMA.model_copy(update={"devices": 7}))),
    ("data.same", lambda: wrong("step", distinct_losses=1)),
    ("loss.not_finite", lambda: wrong("step", 3, loss="nan")),
    ("loss.not_falling", lambda: everywhere("loss", 1.0)),
    ("loss.not_falling", lambda: verdict(min_loss_drop=0.999)),
    ("gradients.ranks_missing", lambda: wrong("step", 4, gradients={"aa": 15})),
    ("gradients.differ", lambda: wrong("step", gradients={"aa": 15, "bb": 1})),
    ("gradients.differ", lambda: wrong("end", parameters={"aa": 8, "bb": 8})),
    ("gradients.constant", lambda: everywhere("gradients", {"00": WORLD})),
    ("checkpoint.too_small", lambda: wrong("checkpoint", bytes=GIB)),
    ("recovery.not_restarted", lambda: resumed()),
    ("recovery.started_anew", lambda: resumed(*anew())),
    ("recovery.other_checkpoint", lambda: wrong("resume", sha256="cd" * 32)),
    ("recovery.other_checkpoint", lambda: wrong("resume", step=14)),
    # Every restart must resume from it, not the first one only.
    (
        "recovery.other_checkpoint",
        lambda: resumed(*second()[: len(starts()) + 2], *changed(second(), "resume", step=14)),
    ),
    # Ranks that fail long after the kill do so for a reason of their own.
    ("recovery.failed_again", lambda: resumed(*second()[: len(starts()) + 7], *second())),
    # The state of another step: the loss jumps, or is only nearly the same.
    ("recovery.other_loss", lambda: resumed(*changed(second(), "step", loss=2.0))),
    ("recovery.other_loss", lambda: resumed(*changed(second(), "step", loss=first()[-3]["loss"] * 1.01))),
    # On shared storage every worker sees the same file.
    ("recovery.not_shared", lambda: verdict(shared_checkpoint=True)),
    (
        "recovery.not_shared",
        lambda: verdict(changed(run(), "resume", files={SHA256: 1, "cd" * 32: 1}), shared_checkpoint=True),
    ),
    ("allreduce.wrong", lambda: wrong("timing", wrong=3)),
    ("busbw.not_measured", lambda: wrong("timing", bytes=GIB // 2)),
    ("busbw.too_low", lambda: wrong("timing", allreduce_s=[0.02] * 5)),
]
UNKNOWN: list[tuple[str, Case]] = [
    ("job.unknown", lambda: ended(None)),
    ("log.no_run", lambda: verdict([])),
    ("log.other_schema", lambda: wrong("start", 1, schema=9)),
    ("log.damaged", lambda: verdict([*run(), record("end", step=STEPS, parameters={"aa": WORLD})])),
    # A terminal would obey it.
    ("log.damaged", lambda: wrong("host", 1, device="NVIDIA H100\x1b[2K\rPASS")),
    ("ranks.wrong_count", lambda: verdict([])),
    ("fabric.no_messages", lambda: verdict(nccl=None)),
    ("fabric.not_all_up", lambda: verdict(nccl=RDMA.model_copy(update={"communicator": False}))),
    # Over gloo, on a pool with RDMA.
    ("fabric.gloo", lambda: everywhere("backend", "gloo", nccl=None, backend="gloo")),
    ("data.same", lambda: verdict([])),
    ("loss.not_falling", lambda: verdict([*starts(), *(step(number) for number in range(1, 6))])),
    ("gradients.ranks_missing", lambda: verdict(without(run(), "end"))),
    ("checkpoint.missing", lambda: verdict(without(run(), "checkpoint"))),
    ("recovery.not_killed", lambda: verdict(anew())),
    ("allreduce.not_measured", lambda: verdict(without(run(), "timing"))),
    ("busbw.no_expectation", lambda: verdict(busbw_gbps=None)),
]


def test_every_check_has_a_case_that_it_fails_and_one_that_leaves_it_unknown() -> None:
    fails, unknown = ([code for code, _ in cases] for cases in (FAILS, UNKNOWN))
    missing = without_case(CHECKS, fails, unknown, never_unknown={})
    assert not missing, "\n".join(missing)


def status_of(found: Verdict, code: str) -> tuple[str, str | None]:
    check = next(each for each in found.checks if each.name == code.partition(".")[0])
    return check.status, check.code


@pytest.mark.parametrize(("code", "case"), FAILS, ids=[code for code, _ in FAILS])
def test_a_check_fails_its_case_and_so_does_the_run(code: str, case: Case) -> None:
    judged = case()
    assert (status_of(judged, code), judged.verdict) == (("fail", code), "fail")


@pytest.mark.parametrize(("code", "case"), UNKNOWN, ids=[code for code, _ in UNKNOWN])
def test_a_check_without_its_evidence_is_unknown_and_the_run_does_not_pass(code: str, case: Case) -> None:
    judged = case()
    assert (status_of(judged, code), judged.passed) == (("unknown", code), False)


# A reason, and the run that has it.
REASONS: dict[str, Case] = {
    "gpu-1 has 7 ranks, expected 8": lambda: verdict(
        changed(changed(run(), "host", ranks=7), "host", 1, ranks=9, first_rank=7)
    ),
    "took 20 ms (100.7 GB/s busbw); at the measured 390 GB/s it takes 5.16 ms. Expected at least 0.7 of the "
    "measured busbw (273 GB/s)": lambda: wrong("timing", allreduce_s=[0.02] * 5),
    "start 2: transport: TCP between hosts": lambda: judge(
        read_lines([*lines(first()), *lines(second(), TCP)]), expected()
    ),
    "pod x was deleted": lambda: judge(read_lines(lines(run())), expected(), missing=("pod x was deleted",)),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_run_without_a_pass_says_what_was_found_and_what_is_expected(reason: str) -> None:
    found = REASONS[reason]()
    assert not found.passed
    assert any(reason in each for each in found.reasons), found.reasons


def test_a_loss_that_fell_enough_and_one_file_on_shared_storage_pass() -> None:
    assert verdict(min_loss_drop=0.95).passed
    assert verdict(changed(run(), "resume", files={SHA256: 2}), shared_checkpoint=True).passed


def test_several_restarts_pass_where_each_resumes_from_the_checkpoint() -> None:
    found = resumed(*second()[: len(starts()) + 2], *second())
    assert (found.verdict, found.starts) == ("pass", 3)


def test_messages_after_a_kill_do_not_count() -> None:
    noise = b"training-h100-0:40:90 [0] socket.c:881 NCCL WARN Net: Connection closed by remote peer\n"
    printed = [*lines(first()), noise, *lines(second())]
    assert judge(read_lines(printed), expected()).passed
    *before, kill = lines(first())
    found = judge(read_lines([*before, noise, kill, *lines(second())]), expected())
    assert codes(found) == {"fabric.unknown"}


@pytest.mark.parametrize("rest", [[], [b"gpu-1:40:90 [0] NCCL\n"]], ids=["lost", "cut"])
def test_a_line_of_nccl_that_is_lost_or_cut_is_noticed(rest: list[bytes]) -> None:
    printed = lines(run())
    at = next(i for i, line in enumerate(printed) if b" via NET/" in line)
    found = judge(read_lines([*printed[:at], *rest, *printed[at + 1 :]]), expected())
    assert "log.damaged" in codes(found)
    assert not found.passed


def test_a_record_that_is_cut_is_named_with_its_line() -> None:
    printed = lines(run())
    cut = [*printed[:3], printed[3][:40] + b"\n", *printed[4:]]
    found = judge(read_lines(cut), expected())
    assert "log.damaged" in codes(found)
    assert any("line 4 is not a record" in reason for reason in found.reasons)


def test_a_record_behind_an_open_line_of_another_process_is_read() -> None:
    glued = [
        b"W1121 torch/distributed/run.py] " + line if b'"end"' in line else line for line in lines(run())
    ]
    assert judge(read_lines(glued), expected()).passed


def test_a_run_that_never_started_says_why_where_its_log_does() -> None:
    crash = b"training-h100-0:40:90 [0] init.cc:1 NCCL WARN Cuda failure 'out of memory'\n"
    found = judge(read_lines([crash]), expected())
    assert found.verdict == "unknown"
    assert codes(found) >= {"log.no_run", "ranks.wrong_count", "fabric.no_messages"}
