"""Logs of NCCL on a real GPU: each failure that was made on purpose is named, and the healthy runs pass.

All are of one H200 in a VM: driver 580.159.04, nccl-tests 2.19.6, NCCL 2.32.3, and 2.28.9 in PyTorch 2.11.
The hosts are namespaces of that machine with TCP between them, whose ranks share the GPU
(NCCL_MULTI_RANK_GPU_ENABLE). Lines that say nothing about the result are left out, and the launcher's count
of lines is that of the file.
"""

from pathlib import Path

import pytest

from busbar.judge.nccl import Expectation, Verdict, judge

LOGS = Path(__file__).with_name("h200")
TCP = Expectation(transport="socket", nodes=2, expected_busbw_gbps=1.8)


def verdict_on(name: str) -> Verdict:
    return judge((LOGS / f"{name}.log").read_bytes().splitlines(keepends=True), TCP)


def test_a_healthy_run_over_tcp_passes() -> None:
    verdict = verdict_on("two-hosts-over-tcp")
    assert (verdict.verdict, verdict.busbw_gbps, verdict.nccl_version) == ("pass", 1.86, "2.32.3+cuda13.4")
    assert verdict.diagnoses == []


def test_a_bandwidth_that_nccl_did_not_measure_is_no_failure() -> None:
    verdict = verdict_on("diagnostics-of-nccl")
    named = {each.name: each for each in verdict.diagnoses}
    assert "nccl-diagnostics" not in named


@pytest.mark.parametrize(
    ("name", "cause", "evidence"),
    [
        ("rank-killed", "out-of-host-memory", "signal 9 (Killed)"),
        ("rank-stopped", "hang", "exit code 124"),
        ("node-dead", "mpi-daemons-not-started", "A daemon failed to report back"),
        ("ssh-refused", "connection-refused", "gpu-2 port 22"),
        ("no-route", "hosts-unreachable", "peer 10.77.0.12"),
        ("unknown-algorithm", "unknown-algorithm", '"none"'),
        ("no-algorithm", "unknown-algorithm", "NCCL_ALGO was set to NVLS,NVLSTREE"),
        ("no-hca", "no-rdma-device", "No device found"),
        ("two-versions-of-nccl", "image-differs", "mismatch in info from procs"),
        ("no-hca-in-torch", "no-rdma-device", "No device found"),
        ("out-of-memory-in-torch", "gpu-memory", "CUDA out of memory"),
    ],
)
def test_a_failure_that_was_made_on_purpose_is_named_first(name: str, cause: str, evidence: str) -> None:
    verdict = verdict_on(name)
    first = verdict.diagnoses[0]
    assert (verdict.verdict, first.name, first.role) == ("fail", cause, "first-cause")
    assert evidence in first.evidence
