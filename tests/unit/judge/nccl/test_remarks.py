"""A line that disturbs the rows leaves no verdict; every other unusual line is shown and decides nothing."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Verdict, judge
from busbar.judge.nccl.log.known import LineRules
from busbar.judge.nccl.report.terminal import summary
from tests.unit.judge.nccl.logs import WANT, Made

BOUNDED = settings(max_examples=30)
PROCESS = "worker-1:40:90 [3] "
HEALTHY = Made().lines()
FIRST_ROW = next(i for i, line in enumerate(HEALTHY) if line.lstrip()[:1].isdigit())
DEVICE_LIST = next(i for i, line in enumerate(HEALTHY) if line.startswith("#  Rank"))
PLACES = {"start": DEVICE_LIST, "before": FIRST_ROW, "among": FIRST_ROW + 1, "behind": len(HEALTHY)}
LEVELS = st.sampled_from(["WARN", "ERROR", "ATTN"])
WORDS = st.lists(
    st.sampled_from(["ring", "7", "mlx5_3", "rank", "window", "buffer", "too", "small", "of", "0x7f2e"]),
    min_size=3,
).map(" ".join)


def with_line(line: str, place: str = "behind", **want: list[str]) -> Verdict:
    """The healthy log with LINE at PLACE."""
    at = PLACES[place]
    return judge([*HEALTHY[:at], line, *HEALTHY[at:]], WANT.model_copy(update=want))


@BOUNDED
@given(LEVELS, WORDS, st.sampled_from(["transport/net.cc:812 ", "init.cc:99 (ncclInit) ", ""]))
def test_a_line_of_nccl_that_no_rule_knows_decides_among_the_rows_only(
    level: str, words: str, source: str
) -> None:
    line = f"{PROCESS}{source}NCCL {level} {words}"
    for place in ("start", "before", "behind"):
        verdict = with_line(line, place)
        assert verdict.passed and [remark.text for remark in verdict.remarks] == [line]
    verdict = with_line(line, "among")
    assert (verdict.verdict, verdict.check("warnings").code) == ("unknown", "warnings.disturbed")
    assert with_line(line, "among", accept_warnings=[words]).passed


def test_a_line_that_nccl_prints_before_the_rows_too_does_not_disturb_them() -> None:
    line = "NCCL WARN the window is of 7 pages"
    log = [*HEALTHY]
    log.insert(FIRST_ROW + 1, f"worker-0:41:91 [1] {line}")
    log.insert(FIRST_ROW, f"{PROCESS}{line}")
    verdict = judge(log, WANT)
    assert verdict.passed and [remark.count for remark in verdict.remarks] == [2]


KERNEL = [
    "[ 8812.11] mlx5_core 0000:5d:00.0: handling bad device here",
    "[ 8812.11] bnxt_en 0000:5d:00.0 ens5: starting reset task!",
    "worker-1 kernel: amdgpu 0000:05:00.0: GPU reset begin!",
    "[ 8812.11] DMAR: [DMA Write] Request device [5d:00.0] fault addr 0xffdd0000",
    "[ 8812.11] EDAC MC0: 1 UE memory read error",
    "[ 8812.11] watchdog: BUG: soft lockup - CPU#41 stuck for 26s!",
]


@pytest.mark.parametrize("line", KERNEL)
def test_the_kernel_disturbs_the_rows_and_is_shown_elsewhere(line: str) -> None:
    for place in ("start", "behind"):
        verdict = with_line(line, place)
        assert verdict.passed and [remark.kind for remark in verdict.remarks] == ["kernel"]
    assert with_line(line, "among").check("warnings").code == "warnings.disturbed"


def test_a_failure_of_a_host_before_the_rows_is_a_remark() -> None:
    verdict = judge(["worker-1 failed", *HEALTHY], WANT)
    assert verdict.passed and [remark.text for remark in verdict.remarks] == ["worker-1 failed"]


@pytest.mark.parametrize("place", ["start", "behind"])
@pytest.mark.parametrize(
    "line",
    [
        "GPU 3 failed", "HW Slowdown : Active", "State: Down", "ECC errors: 2", "[FAIL] mlx5_3 gives 97 Gb/s",
        "12 of 18 NVLinks are up", "ERROR: GPU 3 has 17 of its links", "nvidia-fabricmanager is not running",
        "/dev/infiniband is missing", "nvidia-peermem inactive (dead)", "NVSwitch 2 failed to initialize",
        "NVML not found", "mlx5_3 is unhealthy",
    ],
)  # fmt: skip
def test_hardware_that_a_tool_or_a_check_finds_faulty_leaves_no_verdict(line: str, place: str) -> None:
    verdict = with_line(line, place)
    assert (verdict.verdict, verdict.check("warnings").code) == ("unknown", "warnings.fault")
    assert line in "\n".join(summary(verdict, 400))
    assert with_line(line, place, accept_warnings=[line]).passed


@pytest.mark.parametrize(
    "line",
    [
        "+ nvidia-smi -q | grep -i fail", "export NVIDIA_RESET_TIMEOUT=30", "Checking NVLink errors",
        "HW Slowdown : Not Active", "18 of 18 NVLinks are up", "MIG Mode : Disabled", "GPU errors: 0",
        "gpu-b: the agent failed", "[c10d] The client socket has failed to connect to [gpu-a]:29500",
        "the exporter is not running on port 9400", "UCX ERROR mlx5_3 failed",
        "WARNING: GDRCopy failed, falling back to cudaMemcpy",
    ],
)  # fmt: skip
def test_what_a_program_says_of_itself_or_of_good_hardware_passes(line: str) -> None:
    assert with_line(line, "start").passed and with_line(line).passed


def test_a_failure_of_anything_else_before_the_rows_is_none() -> None:
    assert judge(["the cache of packages is missing", *HEALTHY], WANT).remarks == []


@pytest.mark.parametrize("line", ["the exporter failed", "エクスポート終了", "UCX WARN rkey lost"])
def test_what_says_failure_or_is_not_ascii_behind_the_table_is_a_remark(line: str) -> None:
    verdict = with_line(line)
    assert verdict.passed and [remark.text for remark in verdict.remarks] == [line]


@pytest.mark.parametrize(
    "line",
    [
        "CRC Errors: 0", "ECC Errors", "0 errors", '"missing_ranks": []', "GPU 0: NVIDIA H100 80GB HBM3",
        "NVLink errors : 0", "GPU ECC mode: enabled",
    ],
)  # fmt: skip
def test_a_counter_of_0_a_heading_and_good_hardware_are_no_remark(line: str) -> None:
    assert with_line(line).remarks == with_line(line, "start").remarks == []


def test_lines_that_differ_in_numbers_and_hosts_are_one_remark() -> None:
    lines = [f"agent on worker-{host}: {n} probes failed" for host in range(2) for n in range(1, 5)]
    (remark,) = judge([*HEALTHY, *lines], WANT).remarks
    assert (remark.line, remark.text, remark.count) == (len(HEALTHY) + 1, lines[0], 8)


def test_errors_stand_before_warnings_before_the_kernel_before_the_rest() -> None:
    lines = ["the agent failed", KERNEL[0], f"{PROCESS}NCCL WARN a", f"{PROCESS}NCCL ERROR b"]
    verdict = judge([*HEALTHY, *lines], WANT)
    assert [remark.kind for remark in verdict.remarks] == ["error", "warn", "kernel", "other"]
    text = summary(verdict, 200)
    assert text[0].endswith("4 remarks") and "and 1 remark more" in text[-2]


@pytest.mark.parametrize(
    "line", ["journald: Suppressed 18231 messages from nccl.service", "kubectl: log buffer full", "\0" * 512]
)
def test_a_log_that_lost_lines_leaves_no_verdict(line: str) -> None:
    assert with_line(line, "among").check("source").code == "source.lines_missing"


def test_lines_that_ray_left_out_are_missing_and_no_failure() -> None:
    made = Made(communicator=True)
    kept: dict[str, str] = {}
    for line in made.lines():
        # Ray prints the first of the lines that differ in numbers only.
        shape = re.sub(r"\d+", "0", line) if "NCCL INFO" in line else line
        tag = " [repeated 7x across cluster] (Ray deduplicates logs by default.)" if "Using" in line else ""
        kept.setdefault(shape, line + tag)
    verdict = judge(kept.values(), WANT)
    codes = {check.code for check in verdict.checks if check.status in ("fail", "unknown")}
    assert {"source.lines_missing", "ranks.excerpt"} <= codes
    assert (verdict.verdict, verdict.hcas[:1], verdict.diagnoses) == ("unknown", ["mlx5_0"], [])


@pytest.mark.parametrize(
    "line",
    ["transport/net_ib.cc:7 NCCL WARN NET/IB : Unable to open device mlx5_0", "NCCL WARN Cuda failure 1"],
)
def test_a_known_failure_among_the_rows_leaves_no_verdict_and_is_a_remark_elsewhere(line: str) -> None:
    assert with_line(f"{PROCESS}{line}", "among").verdict == "unknown"
    assert with_line(f"{PROCESS}{line}", "behind").passed


def test_a_known_line_among_the_rows_passes_where_its_gates_prove_that_it_did_no_harm() -> None:
    text = "connect to 10.0.0.2<45231> returned Connection refused, retrying (1/34) after sleep for 100 msec"
    assert with_line(f"{PROCESS}NCCL INFO socketPollConnect: {text}", "among").passed


def test_without_tables_a_process_measures_once_its_communicator_is_set_up() -> None:
    rules = LineRules(measured=True)
    rules.look(f"{PROCESS}NCCL WARN a window", 1, level="WARN")
    rules.look(f"{PROCESS}NCCL INFO comm 0x1 rank 3 nranks 16 - Init COMPLETE", 2, level="INFO")
    rules.look(f"{PROCESS}NCCL WARN a ring", 3, level="WARN")
    assert [line.decides for line in rules.unusual.values()] == ["", "disturbed"]


def saying(*info: str) -> Verdict:
    """A healthy log in which NCCL also says INFO."""
    return judge(Made(info=list(info)).lines(), WANT)


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
