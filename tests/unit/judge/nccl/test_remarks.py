"""Bad ends and lines among the rows leave no pass; every other unusual line is shown and decides nothing."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Verdict, judge
from busbar.judge.nccl.log.known import LineRules, failures
from busbar.judge.nccl.report.terminal import summary
from tests.unit.judge.nccl.logs import FIRST_ROW, HEALTHY, PLACES, WANT, Made, with_line

BOUNDED = settings(max_examples=30)
PROCESS = "worker-1:40:90 [3] "
LEVELS = st.sampled_from(["WARN", "ERROR", "ATTN"])
WORDS = st.lists(
    st.sampled_from(["ring", "7", "mlx5_3", "rank", "window", "buffer", "too", "small", "of", "0x7f2e"]),
    min_size=3,
).map(" ".join)


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
    verdict = with_line("worker-1 failed", "top")
    assert verdict.passed and [remark.text for remark in verdict.remarks] == ["worker-1 failed"]


LINES_OF_OTHERS = {
    # hardware that a tool or a check finds faulty
    "fault": [
        "GPU 3 failed", "HW Slowdown : Active", "State: Down", "ECC errors: 2", "[FAIL] mlx5_3 gives 97 Gb/s",
        "12 of 18 NVLinks are up", "ERROR: GPU 3 has 17 of its links", "nvidia-fabricmanager is not running",
        "/dev/infiniband is missing", "nvidia-peermem inactive (dead)", "NVSwitch 2 failed to initialize",
        "NVML not found", "mlx5_3 is unhealthy", "0, NVIDIA H100 80GB HBM3, Active, Not Active, 69.1 W",
    ],
    # what a program says of itself or of good hardware
    "pass": [
        "+ nvidia-smi -q | grep -i fail", "export NVIDIA_RESET_TIMEOUT=30", "Checking NVLink errors",
        "HW Slowdown : Not Active", "18 of 18 NVLinks are up", "MIG Mode : Disabled", "GPU errors: 0",
        "gpu-b: the agent failed", "[c10d] The client socket has failed to connect to [gpu-a]:29500",
        "the exporter is not running on port 9400", "UCX ERROR mlx5_3 failed",
        "WARNING: GDRCopy failed, falling back to cudaMemcpy",
        "index, name, clocks_event_reasons.hw_slowdown, clocks_event_reasons.sw_power_cap, power.draw [W]",
        "0, NVIDIA H100 80GB HBM3, Not Active, Not Active, 69.1 W",
    ],
    # a counter of 0, a heading
    "nothing": [
        "CRC Errors: 0", "ECC Errors", "0 errors", '"missing_ranks": []', "GPU 0: NVIDIA H100 80GB HBM3",
        "NVLink errors : 0", "GPU ECC mode: enabled",
    ],
    "remark behind the table": ["the exporter failed", "エクスポート終了", "UCX WARN rkey lost"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "line"), [(kind, line) for kind, lines in LINES_OF_OTHERS.items() for line in lines]
)
def test_a_line_of_another_program_counts_where_it_says_that_hardware_is_faulty(kind: str, line: str) -> None:
    for place in ("start", "behind"):
        verdict = with_line(line, place)
        if kind == "fault":
            assert (verdict.verdict, verdict.check("warnings").code) == ("unknown", "warnings.fault")
            assert line in "\n".join(summary(verdict, 400))
            assert with_line(line, place, accept_warnings=[line]).passed
        else:
            assert verdict.passed and (kind != "nothing" or verdict.remarks == [])
    assert kind != "remark behind the table" or [remark.text for remark in verdict.remarks] == [line]


def test_a_failure_of_anything_else_before_the_rows_is_none() -> None:
    assert with_line("the cache of packages is missing", "top").remarks == []


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


# ---- how programs and launchers end
ENDINGS = [(failure.name, row) for failure in failures() for row in failure.lines if row.of]
AMONG_OR_BEHIND = st.sampled_from(["among", "behind"])


@pytest.mark.parametrize("place", ["among", "behind"])
def test_every_known_ending_fails_a_log_whose_table_is_whole(place: str) -> None:
    rows = ((name, row) for name, row in ENDINGS if not row.before_start)
    shown = ((name, [row.example] if row.example else row.contains) for name, row in rows)
    for name, example in ((name, example) for name, examples in shown for example in examples):
        verdict = with_line(example, place)
        assert verdict.verdict == "fail", example
        assert name in [d.name for d in verdict.diagnoses], example


WHO = st.sampled_from(["job 812", "rank 3", "worker-1", "the process", "step 4.0", "container nccl"])
CODES = (
    "exited with code 1",
    "returned exit status 255",
    "ended, rc=143",
    "failed (exit code: 9)",
    "exited 1",
)
ENDED = (
    *CODES,
    "was killed by the operator", "killed", "has been evicted from the node", "was preempted",
    "crashed with SIGSEGV", "received signal 15", "got SIGTERM, cleaning up", "was cancelled by root",
    "dumped core", "died", "ran into a segmentation fault", "aborted", "was terminated by the scheduler",
    "panicked", "exceeded its time limit", "has reached its walltime limit", "timed out", "OOMKilled",
    "finished with status 137", "had a non-zero exit status", "ended unexpectedly",
    "lost its connection", "closed the connection", "is unreachable", "is not responding", "disconnected",
    "is stuck", "was requeued", "FAILED", "failed to dial the server", "went NotReady", "TIMEOUT",
    "failed an assertion", "hit a bus error", "was interrupted", "is shutting down",
)  # fmt: skip
LAUNCHER = st.sampled_from(
    ["", "launchd: ", "[worker-1:57] ", "myrun: error: ", "2026-05-05T10:00:00Z ", "> "]
)


@BOUNDED
@given(LAUNCHER, WHO, st.sampled_from(CODES), AMONG_OR_BEHIND)
def test_a_code_that_is_not_0_is_no_pass_unless_it_is_accepted_by_name(
    launcher: str, who: str, ended: str, place: str
) -> None:
    verdict = with_line(f"{launcher}{who} {ended}", place)
    check = verdict.check("warnings")
    assert check.status in ("unknown", "fail")
    if check.status == "unknown":
        assert (check.code, check.line) == ("warnings.ended_badly", PLACES[place] + 1)
        assert f"{who} {ended}" in check.reason
        accepted = with_line(f"{launcher}{who} {ended}", place, accept_warnings=[f"{who} {ended}"])
        assert accepted.passed and accepted.check("warnings").code == "warnings.accepted"


@pytest.mark.parametrize("word", ["Killed", "Getötet", "Speicherzugriffsfehler", "已杀死", "中止"])
@pytest.mark.parametrize("shell", ["run.sh: line 4:", "run.sh : ligne 4 :", "bash: 行 1:", "run.sh: 4 行:"])
def test_the_end_of_the_program_counts_in_every_language(shell: str, word: str) -> None:
    assert not with_line(f"{shell}  4264 {word}          ./all_reduce_perf -b 8").passed


@pytest.mark.parametrize("command", ["nvidia-smi dmon", "sleep 600", "./monitor.sh"])
@pytest.mark.parametrize("word", ["Terminated", "Killed", "Getötet"])
def test_the_end_of_another_process_is_a_remark(word: str, command: str) -> None:
    verdict = with_line(f"./run.sh: line 4:  4264 {word}          {command}")
    assert verdict.passed and [remark.kind for remark in verdict.remarks] == ["other"]


def test_a_known_failure_is_not_accepted_by_name() -> None:
    line = "srun: error: Node failure on nid003981"
    assert with_line(line, accept_warnings=[line]).verdict == "fail"


def test_an_accepted_text_accepts_no_other_line() -> None:
    log = [*HEALTHY, "agent: rank 3 exited with code 1", "agent: the job exited with code 1"]
    verdict = judge(log, WANT.model_copy(update={"accept_warnings": ["rank 3 exited"]}))
    assert "the job exited" in verdict.check("warnings").reason


ERRORS = st.sampled_from(
    [
        "an error occurred forwarding 8080", "Error: failed to create shim task", "Cannot allocate memory",
        "No space left on device", "what(): std::bad_alloc", "read ECONNRESET",
        "Permission denied (publickey)",
        "fork: Resource temporarily unavailable", "PMIX_ERR_UNREACH (-25)", "gave up after 3 retries",
        "stopped answering", "vanished",
        "Transport retry count exceeded on mlx5_0:1/IB", "device's health compromised",
        "couldn't write the result", "stream error: stream ID 9; CANCEL; received from peer",
        "sending signal TERM to command", "Unhandled rejection", "+++ killed by SIGKILL +++", "NODE_FAIL",
    ]
)  # fmt: skip


@BOUNDED
@given(LAUNCHER, st.builds("{} {}".format, WHO, st.sampled_from(ENDED)) | ERRORS, AMONG_OR_BEHIND)
def test_an_end_or_an_error_in_unknown_words_is_shown(launcher: str, text: str, place: str) -> None:
    verdict = with_line(f"{launcher}{text}", place)
    assert not verdict.passed or text in verdict.remarks[0].text


NOT_RESOLVED = "ssh: Could not resolve hostname nccl-worker-1.nccl: Name or service not known"


def test_a_name_that_is_never_or_no_longer_resolved_fails() -> None:
    assert judge([NOT_RESOLVED] * 3 + HEALTHY, WANT).reasons == []
    assert judge([NOT_RESOLVED], WANT).diagnoses[0].name == "worker-name-not-resolved"
    assert with_line(NOT_RESOLVED).verdict == "fail"


HARMLESS = [
    "Warning: Permanently added 'worker-0' (ED25519) to the list of known hosts.",
    'Defaulted container "nccl" out of: nccl, init (init)', "pod/nccl-launcher-x7k condition met",
    "export NCCL_IB_TIMEOUT=22", "srun: job 812 queued and waiting for resources",
    "srun: job 812 has been allocated resources", "Job 812 finished with exit code 0", "ExitCode: 0",
    "command terminated with exit code 0", "+ kill -9 4711",
    "NOTE: The SHMEM allocation limit is set to the default of 64MB.",
    "WARNING: There was an error initializing an OpenFabrics device.",
    "[worker-0:57] 15 more processes have sent help message help-mpi-btl-openib.txt / no device params found",
    "libfabric:77:1726::cxi:core:fi_param_get_():279<info> variable hybrid_preemptive=<not set>",
    "Setting NCCL_TIMEOUT to 1800 seconds", "0 errors, 16 ranks done", "rank 3 of 16 waits for its peer",
    "Open MPI is currently operating in a condition that could result in memory corruption or",
    "Elapsed: 35 s, failed: 0", "salloc: Nodes gpu-[17-18] are ready for job", "all hosts reachable",
    "Exit Status:        0", "nccl-worker-0   1/1   Running   0   5m", "$ kubectl logs sweep-launcher-a1b2c",
    "[gpu-1:0:88 - comm.c:392] INFO [group#:0] group id:0 tree idx:0 tree_type:LLT rail_idx:0 group size:4",
    "gpu-1:0:88 - comm.c:392] INFO [group#:1] group id:0 tree idx:1 tree_type:SAT rail_idx:0 group size:4",
    "# Collective test concluded: all_reduce_perf", "killed: 0", "Number of hung tasks: 0",
    "failed: 0, passed: 16", "no errors found", "Volatile Uncorr. ECC errors                 : 0",
    "perl: warning: Please check that your locale settings:",
    'perl: warning: Falling back to the standard locale ("C").',
    "locale: Cannot set LC_CTYPE to default locale: No such file or directory",
    "bash: cannot set terminal process group (-1): Inappropriate ioctl for device",
    "bash: no job control in this shell", "mesg: ttyname failed: Inappropriate ioctl for device",
    "tput: No value for $TERM and no -T specified",
    "Unable to use a TTY - input is not a terminal or the right kind of file",
    "Authorization required, but no authorization protocol specified",
    "/usr/bin/xauth:  file /root/.Xauthority does not exist",
    "Warning: untrusted X11 forwarding setup failed: xauth key data not generated",
    "whoami: cannot find name for user ID 1000",
    "sudo: unable to resolve host worker-1: Name or service not known",
    "Could not chdir to home directory /home/user: No such file or directory",
    "-bash: ulimit: open files: cannot modify limit: Operation not permitted",
    "libnuma: Warning: cpu argument 9 is out of range",
    '[launcher:00010] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages',
    "[worker-1:00041] mca_base_component_repository_open: unable to open mca_pml_ucx: libucp.so.0: cannot "
    "open shared object file: No such file or directory (ignored)",
    "State:          Terminated", "XID errors: none", "ran: 12 errors: 0 skipped: 3",
    "Using error correction: enabled", "sshd[1]: Received signal 15; terminating.",
]  # fmt: skip


@pytest.mark.parametrize("at", PLACES.values(), ids=PLACES)
def test_what_only_resembles_an_end_or_an_error_changes_nothing(at: int) -> None:
    log = Made(hosts=["dead-node-0", "killed-worker-1"]).lines()
    log = [*log[:at], *HARMLESS, *log[at:]]
    for before in ("", "(Worker pid=71, ip=10.0.0.1) ", "nccl-x7k mpi "):
        assert judge([before + line for line in log], WANT).reasons == []


def test_a_message_of_nccl_behind_a_prefix_is_no_line_of_another_program() -> None:
    made = Made(info=["worker-1:43:90 [3] NCCL INFO TUNER/Plugin: Could not find: libnccl-tuner.so"])
    assert judge([f"nccl-x7k mpi {line}" for line in made.lines()], WANT).remarks == []


def test_a_number_of_the_prefix_is_no_counter_of_the_line() -> None:
    log = [f"(rank=0) {line}" for line in [*HEALTHY, "GPU-a: HW Slowdown: Active"]]
    assert judge(log[:-1], WANT).passed and not judge(log, WANT).passed


RETRIED = st.sampled_from(
    [
        "ssh: connect to host worker-1 port 22: Connection refused",
        "kex_exchange_identification: Connection closed by remote host",
        "Connection closed by 10.0.0.7 port 22",
        "Connection reset by 10.0.0.7 port 22",
        "ssh: connect to host worker-1 port 22: Connection timed out",
        "Readiness probe failed: dial tcp 10.0.0.7:22: connect: connection refused",
        "waiting for worker-1: host is down",
    ]
)


@BOUNDED
@given(RETRIED)
def test_a_connection_that_is_tried_again_before_the_start_changes_nothing(line: str) -> None:
    assert with_line(line, "top").reasons == []


@BOUNDED
@given(RETRIED.filter(lambda line: not line.startswith("ssh: ")), AMONG_OR_BEHIND)
def test_a_connection_that_is_lost_while_the_program_runs_is_shown(line: str, place: str) -> None:
    verdict = with_line(line, place)
    assert not verdict.passed or verdict.remarks
