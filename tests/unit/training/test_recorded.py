"""Logs of real runs of stacks/training/program: two agents of two ranks each, gloo, torch 2.6 of Debian.

Debian builds it without libuv: `use_libuv=False` was added to the TCPStore of its rendezvous.
gloo-2x2.log was printed by the script of busbar.training.proof; gloo-2x2-shared-store.log by the same without
TORCH_DISABLE_SHARE_RDZV_TCP_STORE: after the kill the ranks did not find each other again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from busbar.training.expectation import Expectation
from busbar.training.log import read_lines
from busbar.training.verdict import Verdict, judge
from tests.unit.training.made import codes

RECORDED = Path(__file__).parent / "recorded"


def log(name: str) -> list[bytes]:
    return (RECORDED / f"{name}.log").read_bytes().splitlines(keepends=True)


def judged(lines: list[bytes], **want: Any) -> Verdict:
    expectation = Expectation.model_validate_json((RECORDED / "expectation.json").read_text())
    return judge(read_lines(lines), expectation.model_copy(update=want))


def test_a_real_run_passes_and_its_numbers_are_read() -> None:
    found = judged(log("gloo-2x2"))
    assert (found.verdict, found.reasons) == ("pass", [])
    assert (found.ranks, found.nodes, found.starts, found.torch) == (4, 2, 2, "2.6.0+debian")
    assert found.first_loss == pytest.approx(1.898, abs=0.001)
    assert found.busbw_gbps is not None and 0.1 < found.busbw_gbps < 1
    assert found.allreduce_share is not None and 0 < found.allreduce_share < 1


def test_a_real_run_that_did_not_recover_fails() -> None:
    found = judged(log("gloo-2x2-shared-store"))
    assert found.verdict == "fail"
    assert {"log.no_end", "recovery.not_restarted"} & codes(found)


def test_a_real_run_is_too_slow_for_a_faster_fabric() -> None:
    assert codes(judged(log("gloo-2x2"), busbw_gbps=400.0, min_busbw_fraction=0.7)) == {"busbw.too_low"}


def test_a_real_run_on_other_workers_than_expected_fails() -> None:
    assert codes(judged(log("gloo-2x2"), nodes=("gpu-1", "gpu-3"))) == {"ranks.other_nodes"}


def test_a_real_run_over_gloo_does_not_prove_nccl() -> None:
    assert codes(judged(log("gloo-2x2"), backend="nccl")) >= {"ranks.other_backend", "fabric.no_messages"}


@pytest.mark.parametrize("part", range(10))
def test_a_part_of_a_real_log_is_never_a_pass(part: int) -> None:
    lines = log("gloo-2x2")
    end = next(i for i, line in enumerate(lines) if b'"end"' in line)
    assert not judged(lines[: end * (part + 1) // 10]).passed
