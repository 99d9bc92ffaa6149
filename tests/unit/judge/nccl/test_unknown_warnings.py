"""No message that contradicts what the edges show is passed over, and no state of the hardware."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Expectation, Verdict, judge
from busbar.judge.nccl.report.terminal import summary
from tests.unit.judge.nccl.logs import Made

WANT = Expectation(profile="h100-ib-8x400", nodes=2)
BOUNDED = settings(max_examples=20)
PROCESS = "worker-1:40:90 [3] "


def saying(*info: str) -> Verdict:
    """A healthy log in which NCCL also says INFO."""
    made = Made()
    made.info = list(info)
    return judge(made.lines(), WANT)


@BOUNDED
@given(st.integers(0, 7), st.sampled_from(["worker-1", "worker-0"]))
def test_a_device_without_gpudirect_rdma_contradicts_its_edges(device: int, host: str) -> None:
    line = f"{host}:40:90 [3] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA {device} 'mlx5_{device}'"
    check = saying(line).check("gdrdma")
    assert (check.status, check.code) == ("unknown", "gdrdma.contradicted")


@pytest.mark.parametrize(
    "line",
    [
        "NET/IB : GPU Direct RDMA Disabled for HCA 8 'mlx5_bond_0'",  # carries no edge
        "GPU Direct RDMA Disabled for GPU 7 / HCA 0 (distance 8 > 5)",
        "GPU Direct RDMA Disabled for GPU 1b000 / HCA 3 (distance 7 > 4)",
        "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
        "Initialized NET plugin IB",
        "Assigned NET plugin IB to comm",
    ],
)
def test_a_message_that_contradicts_nothing_changes_nothing(line: str) -> None:
    assert saying(f"{PROCESS}NCCL INFO {line}").reasons == []


@BOUNDED
@given(
    st.integers(1, 2), st.sampled_from(["SHM/direct/direct", "SHM", "direct shared memory"]), st.booleans()
)
def test_a_host_with_nvlink_that_uses_its_memory_only_fails(hosts: int, how: str, other: bool) -> None:
    made = Made()
    made.hosts = made.hosts[:hosts]
    if hosts == 1:
        made.devices, made.peak = 0, 470.0
    edges = [f"{PROCESS}NCCL INFO Channel 00/0 : {r}[{r}] -> {r + 1}[{r + 1}] via {how}" for r in range(7)]
    if hosts == 1:
        edges = [edge.replace("worker-1", "worker-0") for edge in edges]
    p2p = PROCESS.replace("worker-1", "worker-0") + "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    made.info = [*edges, *([p2p] if other and hosts == 2 else [])]
    check = judge(made.lines(), WANT.model_copy(update={"nodes": hosts})).check("transport")
    assert (check.status, check.code) == ("fail", "transport.shared_memory")


def test_a_host_with_some_edges_over_its_memory_is_noted_only() -> None:
    edge = f"{PROCESS}NCCL INFO Channel 00/0 : 0[0] -> 1[1] via "
    verdict = saying(f"{edge}SHM/direct/direct", f"{edge}P2P/CUMEM")
    assert verdict.passed and [d.name for d in verdict.diagnoses] == ["shared-memory-inside-a-host"]


HARDWARE = [
    "NVML",
    "nvidia-fabricmanager",
    "/dev/infiniband",
    "nvidia-peermem",
    "mlx5_3",
    "NVSwitch 2",
    "GPU 3",
]
BAD = ["is missing", "is not running", "failed to initialize", "inactive (dead)", "not found", "is unhealthy"]


@pytest.mark.parametrize("before", [True, False])
def test_a_bad_state_of_the_hardware_is_never_passed_over(before: bool) -> None:
    for line in (f"{what} {state}" for what in HARDWARE for state in BAD):
        log = [line, *Made().lines()] if before else [*Made().lines(), line]
        verdict = judge(log, WANT)
        assert line in "\n".join([*summary(verdict, 400)]), line
        assert verdict.verdict == "unknown", line


@pytest.mark.parametrize(
    "line", ["GPU 0: NVIDIA H100 80GB HBM3", "NVLink errors : 0", "GPU ECC mode: enabled"]
)
def test_a_good_state_of_the_hardware_is_not_noted(line: str) -> None:
    verdict = judge([line, *Made().lines()], WANT)
    assert verdict.passed and verdict.remarks == []


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("kind", "status"), [("Fatal", "fail"), ("Non-fatal", "pass")])
def test_a_fatal_sxid_is_no_pass_and_another_is_noted(kind: str, status: str, before: bool) -> None:
    line = f"[ 4411.09] nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, {kind}, Link 27 LTSSM Fault Up"
    verdict = judge([line, *Made().lines()] if before else [*Made().lines(), line], WANT)
    assert verdict.verdict == status
    assert "NVSwitch" in "\n".join(summary(verdict, 400))


def test_every_text_of_a_record_is_read() -> None:
    record = {"message": "launcher done", "log": {"level": "error"}, "stream": "stderr", "n": 137}
    log = [*Made().lines(), json.dumps(record)]
    assert judge(log, WANT).passed
    for more in (
        {"error": {"message": "exit status 137"}},
        {"error": "OOMKilled"},
        {"error": {"type": "OOMKilled"}},
        {"exit_code": 137},
        {"status": "failed"},
        {"state": {"terminated": {"reason": "OOMKilled"}}},
        {"extra": ["mpirun: killing job..."]},
    ):
        verdict = judge([*Made().lines(), json.dumps(record | more)], WANT)
        assert not verdict.passed or verdict.remarks, more


@pytest.mark.parametrize("line", ["exit code: 137", "rc=1", "exit status: 9", "retcode = -6"])
def test_a_line_of_one_code_is_no_count_of_a_healthy_run(line: str) -> None:
    assert not judge([*Made().lines(), line], WANT).passed


def test_a_second_copy_of_a_line_in_its_record_is_not_read_twice() -> None:
    log = [json.dumps({"message": x, "original": f"2026 pod {x}", "tags": [x]}) for x in Made().lines()]
    assert judge(log, WANT).passed
