"""What makes a training run a pass, and each thing that keeps it from being one."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.training.package.log import read_lines
from stacks.training.package.verdict import judge
from stacks.training.tests.unit.made import (
    CHECKPOINT_STEP,
    GIB,
    RDMA,
    SHA256,
    STEPS,
    TCP,
    WORLD,
    Record,
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


def test_a_run_that_shows_everything_passes() -> None:
    found = verdict()
    assert (found.verdict, found.reasons) == ("pass", [])
    assert {check.status for check in found.checks} == {"pass"}


def test_a_pass_carries_the_times_and_bandwidths_of_the_run() -> None:
    found = verdict(changed([*first(), *second()], "step", 1, loss=1.9))
    assert (found.first_loss, found.last_loss) == (step(1)["loss"], step(STEPS)["loss"])
    assert found.busbw_gbps == pytest.approx(2 * 15 / 16 * GIB / 0.00516 / 1e9)
    assert found.expected_allreduce_seconds == pytest.approx(2 * 15 / 16 * GIB / 390e9)
    assert found.allreduce_share == pytest.approx(0.258)
    assert found.exposed_share == pytest.approx(0.2)
    assert (found.ranks, found.nodes, found.starts) == (16, 2, 2)


def test_an_empty_log_is_no_verdict_and_measures_nothing() -> None:
    found = judge(read_lines(()), expected())
    assert found.verdict == "unknown"
    assert not any(check.status == "pass" for check in found.checks)
    assert found.busbw_gbps is None


def test_a_log_that_is_cut_anywhere_is_never_a_pass() -> None:
    records = [*first(), *second()]
    assert not [count for count in range(len(records)) if verdict(records[:count]).passed]


def test_a_run_without_one_kind_of_record_is_never_a_pass() -> None:
    for kind in ("start", "host", "step", "checkpoint", "kill", "resume", "timing", "end"):
        assert not verdict(without([*first(), *second()], kind)).passed, kind


@pytest.mark.parametrize(
    ("kind", "index", "values", "code", "status"),
    [
        ("start", 1, {"schema": 9}, "log.other_schema", "unknown"),
        ("start", 1, {"steps": 31}, "log.steps_missing", "fail"),
        ("start", 1, {"backend": "gloo"}, "ranks.other_backend", "fail"),
        ("start", 0, {"world_size": 8}, "ranks.wrong_count", "fail"),
        ("host", 1, {"device": "NVIDIA A100-SXM4-80GB"}, "ranks.other_device", "fail"),
        ("host", 1, {"first_rank": 9}, "ranks.wrong_count", "fail"),
        ("step", 3, {"loss": "nan"}, "loss.not_finite", "fail"),
        ("step", 4, {"gradients": {"aa": 15}}, "gradients.ranks_missing", "fail"),
        ("end", 0, {"parameters": {"aa": 8, "bb": 8}}, "gradients.differ", "fail"),
        ("resume", 0, {"step": 14}, "recovery.other_checkpoint", "fail"),
        ("timing", 0, {"bytes": GIB // 2}, "busbw.not_measured", "fail"),
    ],
)  # fmt: skip
def test_one_wrong_record_is_named_by_its_code(
    kind: str, index: int, values: dict[str, Any], code: str, status: str
) -> None:
    found = verdict(changed([*first(), *second()], kind, index, **values))
    assert not found.passed
    assert (code, status) in {(str(check.code), check.status) for check in found.checks}


def test_ranks_that_are_not_spread_as_expected_fail() -> None:
    seven = changed([*first(), *second()], "host", 0, ranks=7)
    found = verdict(changed(seven, "host", 1, ranks=9, first_rank=7))
    [check] = [each for each in found.checks if each.name == "ranks"]
    assert (check.code, check.status) == ("ranks.wrong_per_node", "fail")
    assert check.reason == "gpu-1 has 7 ranks, expected 8"


def test_gradients_that_never_change_fail() -> None:
    same = {"gradients": {"00": WORLD}}
    frozen = [{**each, **same} if "gradients" in each else each for each in [*first(), *second()]]
    assert codes(verdict(frozen)) == {"gradients.constant"}


def test_a_missing_step_is_found() -> None:
    records = [each for each in [*first(), *second()] if each.get("step") != 20]
    assert codes(verdict(records)) == {"log.steps_missing"}


def test_a_job_that_is_too_slow_says_measured_and_expected_time() -> None:
    [reason] = verdict(changed([*first(), *second()], "timing", allreduce_s=[0.02] * 5)).reasons
    assert "took 20 ms (100.7 GB/s busbw); at the measured 390 GB/s it takes 5.16 ms" in reason
    assert "Expected at least 0.7 of the measured busbw (273 GB/s)" in reason


# ---- recovery -------------------------------------------------------------------------------------------


def test_a_run_in_which_nothing_was_killed_proves_no_recovery() -> None:
    whole: list[Record] = [*starts(), *(step(number) for number in range(1, STEPS + 1)), *second()[-2:]]
    assert codes(verdict(whole)) == {"checkpoint.missing", "recovery.not_killed"}


def test_a_run_that_did_not_start_again_fails() -> None:
    assert "recovery.not_restarted" in codes(verdict(first()))


def test_a_run_that_began_anew_after_the_kill_fails() -> None:
    anew: list[Record] = [*starts(), *(step(number) for number in range(1, STEPS + 1)), *second()[-2:]]
    assert codes(verdict([*first(), *anew])) == {"recovery.started_anew"}


def test_a_run_whose_loss_jumps_after_the_resume_has_loaded_another_state() -> None:
    again = changed(second(), "step", 0, loss=2.0)
    found = verdict([*first(), *again])
    assert codes(found) == {"recovery.other_loss"}
    assert f"step {CHECKPOINT_STEP + 1} had the loss" in found.reasons[0]


def test_every_restart_must_resume_from_the_checkpoint_with_nearly_the_same_loss() -> None:
    interrupted = second()[: len(starts()) + 1]
    last = changed(second(), "resume", step=14)
    found = verdict([*first(), *interrupted, step(CHECKPOINT_STEP + 1), *last])
    assert "recovery.other_checkpoint" in codes(found)
    loss = first()[-3]["loss"]
    assert codes(verdict([*first(), *changed(second(), "step", 0, loss=loss * 1.01)])) == {
        "recovery.other_loss"
    }


def test_the_loss_must_fall_by_the_part_that_is_asked_for() -> None:
    assert verdict(min_loss_drop=0.95).passed
    assert codes(verdict(min_loss_drop=0.999)) == {"loss.not_falling"}


def test_several_restarts_pass_where_each_resumes_from_the_checkpoint() -> None:
    interrupted = second()[: len(starts()) + 1]
    found = verdict([*first(), *interrupted, step(CHECKPOINT_STEP + 1), *second()])
    assert (found.verdict, found.starts) == ("pass", 3)


def test_shared_storage_must_show_the_same_file_on_every_worker() -> None:
    assert codes(verdict(shared_checkpoint=True)) == {"recovery.not_shared"}
    of_each = changed([*first(), *second()], "resume", files={SHA256: 1, "cd" * 32: 1})
    assert codes(verdict(of_each, shared_checkpoint=True)) == {"recovery.not_shared"}
    shared = changed([*first(), *second()], "resume", files={SHA256: 2})
    assert verdict(shared, shared_checkpoint=True).passed


# ---- the transport --------------------------------------------------------------------------------------


def test_a_run_that_fell_back_to_tcp_after_the_restart_fails() -> None:
    records = [*lines(first()), *lines(second(), TCP)]
    found = judge(read_lines(records), expected())
    assert found.verdict == "fail"
    assert "start 2: transport: TCP between hosts" in found.reasons[0]


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        ({"gdr": False}, "fabric.failed", "gdrdma: 32 of 32 edges lack /GDRDMA"),
        ({"devices": 7}, "fabric.failed", "uses 7 rails"),
        ({"communicator": False}, "fabric.not_all_up", ""),
    ],
)
def test_a_run_whose_messages_show_another_fabric_is_no_pass(
    change: dict[str, Any], code: str, reason: str
) -> None:
    found = verdict(nccl=RDMA.model_copy(update=change))
    assert codes(found) == {code}
    assert reason in found.reasons[0]


@pytest.mark.parametrize("rest", [[], [b"gpu-1:40:90 [0] NCCL\n"]], ids=["lost", "cut"])
def test_a_line_of_nccl_that_is_lost_or_cut_is_noticed(rest: list[bytes]) -> None:
    printed = lines([*first(), *second()])
    at = next(i for i, line in enumerate(printed) if b" via NET/" in line)
    found = judge(read_lines([*printed[:at], *rest, *printed[at + 1 :]]), expected())
    assert "log.damaged" in codes(found)
    assert not found.passed


def test_messages_after_a_kill_do_not_count() -> None:
    noise = b"training-h100-0:40:90 [0] socket.c:881 NCCL WARN Net: Connection closed by remote peer\n"
    printed = [*lines(first()), noise, *lines(second())]
    assert judge(read_lines(printed), expected()).passed
    *before, kill = lines(first())
    found = judge(read_lines([*before, noise, kill, *lines(second())]), expected())
    assert codes(found) == {"fabric.unknown"}


def test_gloo_on_a_pool_with_rdma_is_no_verdict() -> None:
    records = [{**each, "backend": "gloo"} if "backend" in each else each for each in [*first(), *second()]]
    assert codes(verdict(records, nccl=None, backend="gloo")) == {"fabric.gloo"}


# ---- the job and the log --------------------------------------------------------------------------------


def test_a_log_of_which_a_part_is_missing_is_no_verdict() -> None:
    read = read_lines(lines([*first(), *second()]))
    found = judge(read, expected(), missing=("pod x was deleted",))
    assert codes(found) == {"log.damaged"}
    assert "pod x was deleted" in found.reasons[0]


def test_a_record_that_is_cut_is_named_with_its_line() -> None:
    printed = lines([*first(), *second()])
    cut = [*printed[:3], printed[3][:40] + b"\n", *printed[4:]]
    found = judge(read_lines(cut), expected())
    assert "log.damaged" in codes(found)
    assert any("line 4 is not a record" in reason for reason in found.reasons)


def test_a_record_behind_an_open_line_of_another_process_is_read() -> None:
    printed = lines([*first(), *second()])
    glued = [b"W1121 torch/distributed/run.py] " + line if b'"end"' in line else line for line in printed]
    assert judge(read_lines(glued), expected()).passed


def test_a_run_that_never_started_says_why_where_its_log_does() -> None:
    crash = b"training-h100-0:40:90 [0] init.cc:1 NCCL WARN Cuda failure 'out of memory'\n"
    found = judge(read_lines([crash]), expected())
    assert found.verdict == "unknown"
    assert codes(found) >= {"log.no_run", "ranks.wrong_count", "fabric.no_messages"}


def test_a_second_record_of_a_kind_is_damage() -> None:
    twice = [*first(), *second(), record("end", step=STEPS, parameters={"aa": WORLD})]
    assert "log.damaged" in codes(verdict(twice))
