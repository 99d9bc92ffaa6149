"""A failure names one first cause, and its echoes stand below it, wherever their lines are."""

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Expectation, Verdict, judge
from busbar.judge.nccl.log.known import Failure as Rule
from busbar.judge.nccl.log.known import Instead
from busbar.judge.nccl.log.known import failure as rule
from busbar.judge.nccl.log.known import failures as rules
from busbar.judge.nccl.report.terminal import summary
from tests.diagnosis_page import LINES
from tests.unit.judge.nccl.logs import WANT, Made

BOUNDED = settings(max_examples=20)
FATAL = [r for r in rules() if r.severity == "fatal" and r.lines]
CAUSES = [r for r in FATAL if r.effective_kind == "cause"]
LATER = [r for r in rules() if r.lines and r.effective_kind in ("crash", "peer", "echo")]


def started() -> list[str]:
    """A log up to the first row: the device list and NCCL's messages."""
    log = Made().lines()
    return log[: next(i for i, x in enumerate(log) if x.lstrip()[:1].isdigit())]


def hung() -> list[str]:
    """A log that ends before the head of its table."""
    return [line for line in started() if "algbw" not in line]


def test_every_name_that_a_rule_explains_is_a_rule() -> None:
    names = {r.name for r in rules()}
    assert [e for r in rules() for e in r.explains if e not in names] == []


@BOUNDED
@given(cause=st.sampled_from(CAUSES), echoes=st.lists(st.sampled_from(LATER), max_size=5), data=st.data())
def test_the_cause_is_first_wherever_its_echoes_are_printed(
    cause: Rule, echoes: list[Rule], data: st.DataObject
) -> None:
    lines = data.draw(st.permutations([cause, *echoes]))
    found = judge([*started(), *(LINES[each.name] for each in lines)], WANT).diagnoses
    assert (found[0].name, found[0].role) == (cause.name, "first-cause")
    assert found[0].line == len(started()) + lines.index(cause) + 1
    assert {d.name for d in found[1:] if d.role == "echo"} >= {e.name for e in echoes}


@BOUNDED
@given(st.lists(st.sampled_from(CAUSES), min_size=2, max_size=4, unique_by=lambda r: r.name))
def test_of_several_causes_the_earliest_is_first(causes: list[Rule]) -> None:
    found = judge([*started(), *(LINES[each.name] for each in causes)], WANT).diagnoses
    assert found[0].name == causes[0].name
    assert [d.role for d in found].count("first-cause") == 1


EXPLAINING = [r for r in rules() if any(rule(name).lines for name in r.explains)]


@pytest.mark.parametrize("each", EXPLAINING, ids=lambda r: r.name)
def test_what_explains_a_failure_stands_before_it(each: Rule) -> None:
    shown = [rule(name) for name in each.explains if rule(name).lines]
    found = judge([*started(), LINES[shown[0].name], LINES[each.name]], WANT).diagnoses
    assert (found[0].name, found[0].role) == (each.name, "first-cause")
    assert shown[0].name in [d.name for d in found if d.role == "echo"]


def test_a_device_that_may_not_be_opened_is_the_cause_of_tcp() -> None:
    made = Made(
        network="Socket", gdr=False, peak=3.0, info=[LINES["rdma-device-forbidden"], LINES["no-rdma-device"]]
    )
    found = judge(made.lines(), WANT).diagnoses
    assert [d.name for d in found][:3] == ["rdma-device-forbidden", "no-rdma-device", "socket-fallback"]
    assert [d.role for d in found] == ["first-cause", *["echo"] * (len(found) - 1)]


@pytest.mark.parametrize("each", ["no-rdma-device", "gpudirect-disabled"])
def test_what_keeps_traffic_between_hosts_off_rdma_does_not_slow_one_host(each: str) -> None:
    made = Made(hosts=["worker-0"], peak=90.0, info=[LINES[each].replace("worker-1", "worker-0")])
    for hosts in (["worker-0"], ["worker-0", "worker-1"]):
        made.hosts = hosts
        first = judge(made.lines(), Expectation(gpu="H100", gpus_per_node=8, nodes=len(hosts))).diagnoses[0]
        assert (first.name == each) is (len(hosts) > 1)
    slow = Expectation(profile="h100-ib-8x400", nodes=1)
    assert "NVLink" in cause_of("below-floor", Made(hosts=["worker-0"], peak=200.0).lines(), slow)


def test_a_log_that_passes_has_no_first_cause() -> None:
    made = Made(info=[LINES["remote-exit"], LINES["rails-crossed"]])
    verdict = judge(made.lines(), WANT)
    assert verdict.passed and {d.role for d in verdict.diagnoses} == {"other"}


@BOUNDED
@given(st.lists(st.sampled_from([r for r in rules() if r.lines]), max_size=4), st.booleans())
def test_what_is_printed_is_the_first_cause_of_the_json(shown: list[Rule], whole: bool) -> None:
    log = Made().lines() if whole else started()
    verdict = judge([*log, *(LINES[each.name] for each in shown)], WANT)
    first = [d.name for d in verdict.diagnoses if d.role == "first-cause"]
    printed = [x.split()[1].rstrip(":") for x in summary(verdict, 200) if x.startswith("cause ")]
    assert printed == (first or printed) and len(first) <= 1


def test_what_was_not_measured_well_is_no_cause_of_another_gates_failure() -> None:
    log = [line.replace("  1073741824 ", "  1073741825 ") for line in Made().lines() if "NCCL" not in line]
    verdict = judge(log, WANT)
    assert verdict.check("completeness").status == "fail"
    assert "no-transport-evidence" in [d.name for d in verdict.diagnoses if d.role == "other"]
    assert verdict.diagnoses[0].name == "log-contradicts-itself"


@pytest.mark.parametrize("gate", ["ranks", "completeness"])
def test_a_bandwidth_that_the_rows_contradict_is_not_blamed_on_the_fabric(gate: str) -> None:
    made = Made(peak=200.0, ranks=8 if gate == "ranks" else None)
    verdict = judge([line.replace(" 80531 ", " 70531 ") for line in made.lines()], WANT)
    assert verdict.check("busbw").status == "fail"
    assert summary(verdict, 200)[1].startswith("cause  log-contradicts-itself: ")
    assert summary(verdict, 200)[2].startswith(f"gate   {gate}: ")


@pytest.mark.parametrize("line", ["0/4 nodes are available: 4 Insufficient cpu.", "mlx5_core 0: Link down"])
def test_what_ended_before_the_program_started_is_not_noted(line: str) -> None:
    assert judge([f"[ 8.1] {line}", *Made().lines()], WANT).diagnoses == []


def test_the_next_step_of_lines_that_stand_twice_is_one_copy() -> None:
    verdict = judge([line for line in Made().lines() for _ in range(2)], WANT)
    assert summary(verdict, 200)[1].startswith("cause  source: each line") and verdict.diagnoses == []


def test_a_size_that_one_program_printed_twice_is_not_blamed_on_mpi() -> None:
    log = Made().lines()
    row = next(line for line in log if line.lstrip()[:1].isdigit())
    gate = summary(judge([*log[: log.index(row)], row, *log[log.index(row) :]], WANT), 200)[2]
    assert gate.startswith("gate   ranks: two programs wrote")


REFUTED = [(each, other, text) for each in rules() for other in each.instead[:1] for text in other.where]


def cause_of(name: str, log: list[str], want: Expectation = WANT) -> str:
    return next(d.cause for d in judge(log, want).diagnoses if d.name == name)


@pytest.mark.parametrize(("each", "other", "text"), [r for r in REFUTED if r[0].lines], ids=str)
def test_a_cause_that_a_line_of_its_host_refutes_is_not_named(each: Rule, other: Instead, text: str) -> None:
    shown = re.sub(r"^[\w.\-]+(?=:\d+:\d+ \[)", "worker-1", LINES[each.name])
    for host in ("worker-0", "worker-1"):
        said = f"{host}:41:90 [1] NCCL INFO {text} 7"
        here = host == "worker-1" or not shown.startswith(host[:-1])
        assert cause_of(each.name, [*started(), said, shown]) == (other.cause if here else each.cause)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("NCCL INFO DMA-BUF is available on GPU device 0", "the HCA's driver does not take it"),
        ("NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", "no module is missing"),
        ("NCCL INFO NCCL_NET_GDR_LEVEL set by environment to LOC", "turns GPUDirect RDMA off"),
    ],
)
@pytest.mark.parametrize("want", [WANT, Expectation(nodes=2)])
def test_a_module_that_the_log_shows_is_not_blamed(said: str, left: str, want: Expectation) -> None:
    made = Made(gdr=False)
    name = "no-gpudirect" if want.transport else "edges-without-gpudirect"
    assert "is not loaded and DMA-BUF is not available" in cause_of(name, made.lines(), want)
    made.info = [f"worker-0:40:40 [0] {said}"]
    assert left in cause_of(name, made.lines(), want)


def test_a_hang_behind_the_bootstrap_is_not_blamed_on_its_interface() -> None:
    log = hung()
    assert "wrong bootstrap interface" in cause_of("hang", log)
    log.append("worker-0:40:40 [0] NCCL INFO comm 0x5 rank 0 nranks 16 cudaDev 0 - Init COMPLETE")
    assert "the interface is right" in cause_of("hang", log)
    first = judge([*log, WARNING], WANT).diagnoses[0]
    assert first.name == "hang" and WARNING in first.next


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"gdr": False}, "edges-without-gpudirect"),
        ({"network": "Socket", "gdr": False}, "tcp-between-hosts"),
        ({}, ""),
    ],
)
def test_without_a_profile_the_first_cause_is_what_the_log_shows(change: dict[str, Any], name: str) -> None:
    found = judge(Made(**change).lines(), Expectation(nodes=2)).diagnoses
    assert [d.name for d in found if d.role == "first-cause"] == ([name] if name else [])


@pytest.mark.parametrize("want", [WANT, Expectation(nodes=2)])
def test_what_a_library_says_of_gpudirect_comes_before_edges_without_it(want: Expectation) -> None:
    made = Made(gdr=False)
    said = "NCCL INFO NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR"
    made.info = [f"worker-0:40:40 [0] {said}"]
    first, second = judge(made.lines(), want).diagnoses
    assert (first.name, first.role) == ("gpudirect-disabled", "first-cause")
    assert second.name == ("no-gpudirect" if want.transport else "edges-without-gpudirect")


NAMES = {4: "ib-protection-error", 5: "ib-flushed", 10: "ib-protection-error", 12: "ib-retry-exceeded"}
FORMS = [
    "NET/IB : Got completion with error {s}, opcode 0, len 0, vendor err 129",  # NCCL 2.4 and before
    "NET/IB : Got completion from peer 10.0.0.2<50000> with error {s}, opcode 1, len 0, vendor err 129",
    "NET/IB: Got completion from peer 10.0.0.2<50000> with status={s} opcode=0 len=0 vendor err 129 (Recv)",
    "NET/IB: Got completion from peer 10.0.0.2<50000> with status=IBV_WC_X_ERR({s}) opcode=IBV_WC_SEND(0)",
]


@BOUNDED
@given(status=st.integers(1, 23), form=st.sampled_from(FORMS), plugin=st.booleans())
def test_a_completion_error_of_every_release_is_named_by_its_status(
    status: int, form: str, plugin: bool
) -> None:
    file = "ib_plugin.c:1615" if plugin else "transport/net_ib.cc:833"
    line = f"worker-1:40:90 [1] {file} NCCL WARN {form.format(s=status)}"
    verdict: Verdict = judge([*started(), line], WANT)
    (known,) = [d for d in verdict.diagnoses if d.name.startswith("ib-")]
    assert known.name == NAMES.get(status, "ib-completion-error")
    assert f": status {status}" in known.meaning
    assert ("vendor error 129 (transport retry counter exceeded)" in known.meaning) is ("129" in form)


def timed(lines: list[str], seconds: list[int], form: str) -> list[str]:
    """LINES with the times of a collector; SECONDS pass before each row."""
    at, waits = datetime(2026, 5, 5, 10), iter(seconds)
    out = []
    for line in lines:
        at += timedelta(seconds=next(waits) if line.lstrip()[:1].isdigit() else 1)
        out.append(form.format(at=at.isoformat(), line=line))
    return out


@pytest.mark.parametrize(
    "form", ["{at}.000Z {line}", '{{"log": "{line}\\n", "time": "{at}.12Z"}}', "[{at}] {line}"]
)
@given(seconds=st.lists(st.integers(-7200, 14400), min_size=5, max_size=5))
@BOUNDED
def test_a_gap_or_a_jump_between_the_times_of_rows_leaves_no_verdict(form: str, seconds: list[int]) -> None:
    verdict = judge(timed(Made().lines(), seconds, form), WANT)
    far = any(not (-60 <= each <= 600 or -3600 <= each <= -3000) for each in seconds[1:])
    assert verdict.passed is not far
    assert ("stall-between-rows" in "\n".join(summary(verdict, 200))) is far


WARNING = "worker-1:40:90 [3] misc/new.cc:7 NCCL WARN a text of a new release"
CLOSED = LINES["connection-closed"]
OPEN_FILES = "worker-1:40:90 [3] misc/new.cc:7 NCCL WARN Accept failed: Too many open files"
FAILED = "worker-1: Test NCCL failure common.cu:1012 'internal error - please report'"


@pytest.mark.parametrize(
    ("log", "first"),
    [
        ([*hung(), WARNING], [("earliest-warning", "first-cause"), ("hang", "echo")]),
        ([*hung(), CLOSED], [("connection-closed", "first-cause"), ("hang", "echo")]),
        ([*hung(), WARNING, CLOSED], [("earliest-warning", "first-cause"), ("connection-closed", "echo")]),
        ([*hung(), CLOSED, WARNING], [("connection-closed", "first-cause"), ("hang", "echo")]),
        ([WARNING], [("earliest-warning", "first-cause")]),
        ([*hung(), WARNING, FAILED], [("earliest-warning", "first-cause"), ("test-failure", "echo")]),
        ([*hung(), OPEN_FILES, FAILED], [("errno-open-files", "first-cause"), ("test-failure", "echo")]),
    ],
)
def test_a_warning_is_the_cause_of_what_only_says_that_something_failed(
    log: list[str], first: list[tuple[str, str]]
) -> None:
    assert [(d.name, d.role) for d in judge(log, WANT).diagnoses][:2] == first


CUDA = "GENOA-06:4766:4766 [1] enqueue.cc:1500 NCCL WARN Cuda failure 1 'invalid argument'"
NO_DAEMON = "ORTE was unable to reliably start one or more daemons."
REFUSED = "w-1:77:120 [0] NCCL WARN NET/FasTrak 2026-07-08T01:02: connect() error: 111: Connection refused"
# Lines of a log, and what is said of their first cause and of the next step.
WORDS = {
    # a warning that no rule knows leads to the settings that it names
    "a:1:9 [0] NCCL WARN (shim) mismatch enforced: NCCL_P2P_NVL_CHUNKSIZE = 524288 (expected 262144)":
        "env | grep -e NCCL_P2P_NVL_CHUNKSIZE in the job",
    "a:1:9 [0] NCCL WARN Try selecting NICs of only one link type using NCCL_IB_HCA":
        "env | grep -e NCCL_IB_HCA in the job",
    "a:1:9 [0] NCCL WARN Fusing NET devices of different NUMA domains is not done.": "look the text up",
    NO_DAEMON: "sshd of a worker is not up",
    f"{REFUSED}\n{NO_DAEMON}": "ranks had started",
    "UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory":
        "locked memory",
    "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 7 : CUDA error 2 'out of memory'.":
        "multicast groups",
    "[09677202c889:5283 :0:5704] Caught signal 7 (Bus error: nonexistent physical address)": "/dev/shm",
    f"GENOA-06:4:4 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856\n{CUDA}":
        "older than the GPU",
    "srun: error: cannot find mpi plugin for mpi/pmix": "srun --mpi=list",
    "srun: error: Couldn't load specified plugin name for mpi/pmix: Plugin init() failed": "PMIx",
    'srun: error: "--mpi=pmix" -- long invalid MPI type, --mpi=list for types.': "srun --mpi=list",
    "[mpiexec@a] match_arg (utils/args/args.c:163): unrecognized argument allow-run": "mpirun --version",
    "processes to more cpus than are available in your allocation:": "--bind-to none",
    "slurmstepd: error: mpi/pmix_v5: x: n4 [0]: x.c:408: Can't find address for host n5": "slurm.conf",
    "a: Test NCCL failure common.cu:9 'remote process exited or there was a network error / '":
        "another rank",
    "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.": "kubectl describe node",
    "[worker-0:00041] pml_ucx.c:178  Error: Failed to receive UCX worker address: Not found": "pml ob1",
}  # fmt: skip


@pytest.mark.parametrize(("log", "words"), WORDS.items())
def test_cause_and_next_step_follow_from_what_was_printed(log: str, words: str) -> None:
    first = judge(log.splitlines(), WANT).diagnoses[0]
    assert words in f"{first.cause} {first.next}"


def test_what_the_kernel_says_of_pcie_is_the_cause_of_a_low_bandwidth_only() -> None:
    assert judge([LINES["pcie-bandwidth"], *Made().lines()], WANT).passed
    first = judge([LINES["pcie-bandwidth"], *Made(peak=118.0).lines()], WANT).diagnoses[0]
    assert (first.name, first.role) == ("pcie-bandwidth", "first-cause")


SLOWING = {
    "n1:81:90 [0] transport/nvls.cc:621 NCCL WARN Cuda failure 1 'invalid argument'": "nvls-multicast",
    "vm:30:39 [0] transport/shm.cc:590 NCCL WARN Cuda failure 217 'peer access is not supported between "
    "these two devices'": "cuda-failure",
    "a:1:9 [0] NCCL WARN NET/OFI aws-ofi-nccl initialization failed": "ofi-plugin-not-initialized",
    "a:1:9 [0] NCCL INFO NET/IB : No device found.": "no-rdma-device",
    "  Warning  FailedScheduling  41s  default-scheduler  0/4 nodes are available: 4 Insufficient "
    "nvidia.com/gpu.": "log-not-given",
    "  Warning  Failed  12s (x2 over 30s)  kubelet  Error: ErrImagePull": "log-not-given",
    "  1 job process is considered dead (unreachable via the RAS network)": "ras-reports-fault",
}


@pytest.mark.parametrize(("line", "name"), SLOWING.items())
def test_what_slows_a_run_is_the_cause_where_nothing_was_measured(line: str, name: str) -> None:
    first = judge([line], WANT).diagnoses[0]
    assert (first.name, first.role) == (name, "first-cause")


def test_a_warning_is_no_cause_where_rows_were_measured_and_nothing_failed() -> None:
    assert not judge(Made(info=[WARNING]).lines(), WANT).diagnoses


# Without the name of the host and what else stands before the source or the word WARN.
PUBLIC = {
    "graph/search.cc:719 NCCL WARN XML Import Channel : dev 1 not found.": "topology-file-damaged",
    "graph/xml.h:101 NCCL WARN Attribute arch of node cpu not found": "topology-file-damaged",
    "transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'": "nvls-multicast",
    "enqueue.cc:58 NCCL WARN Cuda failure 'named symbol not found'": "no-kernel-image",
    "net.cc:626 NCCL WARN Error: network AWS Libfabric not found.": "no-network",
    "NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available": "ofi-plugin-not-initialized",
    "connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)": "address-garbled",
    "[rank2]: Cuda failure 802 'system not yet initialized'": "gpu-system-not-ready",
    "NCCL WARN No algorithm/protocol nor symKernelId available for function AllReduce": "unknown-algorithm",
    "NCCL WARN Call to posix_fallocate failed : No space left on device": "shm-too-small",
    "NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported": "p2p-not-available",
    "NCCL WARN NET/OFI Request completed with error. RC: 107. Error: Bad": "libfabric-request-failed",
    "Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)": "test-timeout",
    "NCCL WARN unlink shared memory /dev/shm/nccl-d5rTd0 failed, error: No such file": "shm-not-shared",
    "misc/nvmlwrap.cc:74 NCCL WARN Failed to open libnvidia-ml.so.1": "driver-library-missing",
    "graph/xml.h:356 NCCL WARN Error : too many XML nodes (max 256)": "topology-too-large",
    "socket.c:446 NCCL WARN socketFinalizeAccept: wrong type 3 != 4": "another-network-of-a-peer",
    "misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3": "another-network-of-a-peer",
    "NCCL WARN socketFinalizeAccept from 10.9.0.7<40010>: wrong type 0 != 2": "foreign-connection",
    "NCCL INFO socketFinalizeAccept from 10.9.0.7<40010>: wrong socket type (peer 3 != expected 4 -- peer":
        "another-network-of-a-peer",
    "NCCL WARN NET/OFI Only EFA provider is supported": "ofi-plugin-not-initialized",
    "gpu-a: Test CUDA failure common.cu:1030 'a text of a later CUDA'": "test-cuda-failure",
    "INTERNAL: ncclGetUniqueId(&id) failed: Unable to load NCCL library. Multi-GPU": "program-not-started",
    "exec /usr/local/bin/all_reduce_perf: exec format error": "program-not-started",
    "ERROR: Job failed: execution took longer than 20m0s seconds": "job-cancelled",
    "NCCL WARN NCCL library is too old. This application was compiled with 2.30": "program-not-started",
    "Incompatible NCCL versions. nccl-tests was compiled with NCCL 2.28, but": "program-not-started",
    "NCCL WARN Detected mixed local Net device counts across ranks (min 0, max 1). Set": "net-devices-uneven",
    "NCCL WARN Detected mixed local CollNet device counts across ranks (min 0, max 1).": "net-devices-uneven",
    "NCCL WARN P2P is disabled between NVLINK connected GPUs 2 and 3. This should not": "p2p-not-available",
    "NCCL WARN Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI": "duplicate-gpu",
    "NCCL WARN CUDA Driver version found is 11040. Minimum requirement is 12000": "driver-too-old",
    "NCCL WARN no device found matching ens9, verify NCCL_OOB_NET_IFNAME": "bootstrap-interface",
    "NCCL WARN NET/Socket : No usable listening interface found": "bootstrap-interface",
    "NCCL WARN User requested GIN but not all ranks support GIN": "device-api-not-available",
    "NCCL WARN Communicator does not support symmetric memory!": "device-api-not-available",
    "NCCL WARN No transport found for rank 3[5d000] -> rank 9[1b000]": "no-network",
    "NCCL WARN NET/IB: Fatal error. Detected 2 failed devices out of 2 devices on the": "ib-port-lost",
    "NCCL WARN NET/OFI CM: Unable to register memory. RC: -22, Error: Invalid": "memory-registration",
    "NCCL WARN ibv_post_send() failed with error Cannot allocate memory, Bad WR 0x7": "verbs-call-failed",
    "NCCL WARN NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB": "qp-setup-timeout",
    "NCCL WARN NET/IB : Remote RoCE device is incompatible with the local [0]mlx5_0": "qp-setup-timeout",
    "[ 81.4] pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error received: 0000:1a:00.0":
        "gpu-hardware-error",
    "[ 81.4] mlx5_core 0000:1a:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer":
        "gpu-hardware-error",
    "[ 81.4] bnxt_en 0000:1a:00.0 ens1np0: NIC Link is Down": "port-down",
    "NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: client reregistration event(17)": "hca-event",
}  # fmt: skip


@pytest.mark.parametrize(("line", "name"), PUBLIC.items())
def test_a_line_of_a_public_report_is_named_by_its_rule(line: str, name: str) -> None:
    ended = "gpu-b: Test NCCL failure common.cu:1279 'unhandled system error / '"
    first = judge([*hung(), line, ended], WANT).diagnoses[0]
    assert (first.name, first.role, first.evidence) == (name, "first-cause", line)


def test_a_refused_ssh_is_the_cause_of_a_worker_that_was_lost_before_the_start() -> None:
    refused = "ssh: connect to host worker-1 port 22: Connection refused"
    lost = "PRTE has lost communication with a remote daemon."
    assert judge([refused, lost], WANT).diagnoses[0].name == "connection-refused"
    assert judge([refused, *started(), lost], WANT).diagnoses[0].name == "worker-lost"


def test_ranks_that_all_are_rank_0_are_named_where_no_table_was_printed() -> None:
    listed = next(line for line in started() if line.startswith("#  Rank  0"))
    assert judge(["# Using devices", *[listed] * 8], WANT).diagnoses[0].name == "mpi-not-effective"


def test_an_abort_is_an_echo_of_what_another_process_saw() -> None:
    timed_out = LINES["ib-retry-exceeded"]
    aborts = [
        "terminate called after throwing an instance of 'std::runtime_error'",
        "[neutron-nvidia:820212] *** Process received signal ***",
        "[neutron-nvidia:820212] Signal: Aborted (6)",
        "prterun noticed that process rank 1 with PID 820212 on node neutron-nvidia exited on",
        "signal 6 (Aborted).",
    ]
    found = judge([*started(), *aborts, timed_out], WANT).diagnoses
    assert [(d.name, d.role) for d in found] == [
        ("ib-retry-exceeded", "first-cause"),
        ("rank-failed", "echo"),
    ]
    assert judge([*started(), "[w:1] Signal: Bus error (7)", timed_out], WANT).diagnoses[0].name == "crash"


def test_a_warning_behind_which_nccl_goes_on_stands_behind_the_one_that_ends_it() -> None:
    text = "Could not find a path for pattern 4, falling back to simple order"
    path = f"GENOA-06:4766:4781 [1] graph/search.cc:1135 NCCL WARN {text}"
    ended = "GENOA-06: Test NCCL failure common.cu:392 'unhandled cuda error / '"
    names = [d.name for d in judge([*hung(), path, CUDA, ended], WANT).diagnoses]
    assert names == ["cuda-failure", "no-path-in-topology", "test-failure"]


def test_a_log_whose_beginning_is_missing_says_so_first() -> None:
    want = WANT.model_copy(update={"topology_file": "/opt/topo.xml"})
    for last in (40, 12):
        verdict = judge(Made(info=["w-1:41:90 [1] NCCL INFO NCCL_DEBUG set to INFO"]).lines()[-last:], want)
        assert (verdict.verdict, verdict.diagnoses[0].name) == ("unknown", "beginning-missing")
