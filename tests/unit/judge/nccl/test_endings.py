"""A program or launcher that did not end well gives no pass; the ends of others are shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Verdict, judge
from busbar.judge.nccl.log.known import failures
from tests.unit.judge.nccl.logs import WANT, Made

BOUNDED = settings(max_examples=30)
ROWS = [(failure.name, row) for failure in failures() for row in failure.lines if row.of]
HEALTHY = Made().lines()
SECOND_ROW = next(i for i, x in enumerate(HEALTHY) if x.lstrip()[:1].isdigit()) + 1


def with_line(text: str, at: int = len(HEALTHY), **want: list[str]) -> Verdict:
    """The healthy log with TEXT as line AT."""
    return judge([*HEALTHY[:at], text, *HEALTHY[at:]], WANT.model_copy(update=want))


@pytest.mark.parametrize("at", [SECOND_ROW, len(HEALTHY)])
def test_every_known_ending_fails_a_log_whose_table_is_whole(at: int) -> None:
    rows = ((name, row) for name, row in ROWS if not row.before_start)
    shown = ((name, [row.example] if row.example else row.contains) for name, row in rows)
    for name, example in ((name, example) for name, examples in shown for example in examples):
        verdict = with_line(example, at)
        assert verdict.verdict == "fail", example
        assert name in [d.name for d in verdict.diagnoses], example


WHO = st.sampled_from(
    ["job 812", "rank 3", "worker-1", "the process", "step 4.0", "container nccl", "task 7"]
)
ENDED = st.sampled_from(
    [
        "was killed by the operator", "killed", "has been evicted from the node", "was preempted",
        "crashed with SIGSEGV", "received signal 15", "got SIGTERM, cleaning up", "was cancelled by root",
        "dumped core", "died", "ran into a segmentation fault", "aborted", "was terminated by the scheduler",
        "panicked", "exceeded its time limit", "has reached its walltime limit", "timed out", "OOMKilled",
        "exited with code 1", "returned exit status 255", "ended, rc=143", "failed (exit code: 9)",
        "finished with status 137", "exited 1", "had a non-zero exit status", "ended unexpectedly",
        "lost its connection", "closed the connection", "is unreachable", "is not responding", "disconnected",
        "is stuck", "was requeued", "FAILED", "failed to dial the server", "went NotReady", "TIMEOUT",
        "failed an assertion", "hit a bus error", "was interrupted", "is shutting down",
    ]
)  # fmt: skip
LAUNCHER = st.sampled_from(
    ["", "launchd: ", "[worker-1:57] ", "myrun: error: ", "2026-05-05T10:00:00Z ", "> "]
)
PLACE = st.sampled_from([SECOND_ROW, len(HEALTHY)])


CODES = st.sampled_from(
    ["exited with code 1", "returned exit status 255", "ended, rc=143", "failed (exit code: 9)", "exited 1"]
)


@BOUNDED
@given(LAUNCHER, WHO, CODES, PLACE)
def test_a_code_that_is_not_0_is_no_pass_unless_it_is_accepted_by_name(
    launcher: str, who: str, ended: str, at: int
) -> None:
    verdict = with_line(f"{launcher}{who} {ended}", at)
    check = verdict.check("warnings")
    assert check.status in ("unknown", "fail")
    if check.status == "unknown":
        assert (check.code, check.line) == ("warnings.ended_badly", at + 1)
        assert f"{who} {ended}" in check.reason
        accepted = with_line(f"{launcher}{who} {ended}", at, accept_warnings=[f"{who} {ended}"])
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
@given(LAUNCHER, st.builds("{} {}".format, WHO, ENDED) | ERRORS, PLACE)
def test_an_end_or_an_error_in_unknown_words_is_shown(launcher: str, text: str, at: int) -> None:
    verdict = with_line(f"{launcher}{text}", at)
    assert not verdict.passed or text in verdict.remarks[0].text


NOT_RESOLVED = "ssh: Could not resolve hostname nccl-worker-1.nccl: Name or service not known"


def test_a_name_that_is_resolved_at_a_later_try_changes_nothing() -> None:
    assert judge([NOT_RESOLVED] * 3 + HEALTHY, WANT).reasons == []


def test_a_name_that_is_never_resolved_is_the_first_cause() -> None:
    assert judge([NOT_RESOLVED], WANT).diagnoses[0].name == "worker-name-not-resolved"


def test_a_name_that_is_not_resolved_for_a_second_run_fails() -> None:
    assert with_line(NOT_RESOLVED).verdict == "fail"


HARMLESS = [
    "Warning: Permanently added 'worker-0' (ED25519) to the list of known hosts.",
    'Defaulted container "nccl" out of: nccl, init (init)',
    "pod/nccl-launcher-x7k condition met",
    "export NCCL_IB_TIMEOUT=22",
    "srun: job 812 queued and waiting for resources",
    "srun: job 812 has been allocated resources",
    "Job 812 finished with exit code 0",
    "ExitCode: 0",
    "command terminated with exit code 0",
    "+ kill -9 4711",
    "NOTE: The SHMEM allocation limit is set to the default of 64MB.",
    "WARNING: There was an error initializing an OpenFabrics device.",
    "[worker-0:57] 15 more processes have sent help message help-mpi-btl-openib.txt / no device params found",
    "libfabric:77:1726::cxi:core:fi_param_get_():279<info> variable hybrid_preemptive=<not set>",
    "Setting NCCL_TIMEOUT to 1800 seconds",
    "0 errors, 16 ranks done",
    "rank 3 of 16 waits for its peer",
    "Open MPI is currently operating in a condition that could result in memory corruption or",
    "Elapsed: 35 s, failed: 0",
    "salloc: Nodes gpu-[17-18] are ready for job",
    "all hosts reachable",
    "Exit Status:        0",
    "nccl-worker-0   1/1   Running   0   5m",
    "# Collective test concluded: all_reduce_perf",
    "killed: 0",
    "Number of hung tasks: 0",
    "failed: 0, passed: 16",
    "no errors found",
    "Volatile Uncorr. ECC errors                 : 0",
]


@pytest.mark.parametrize("at", [0, SECOND_ROW, len(HEALTHY)])
def test_what_only_resembles_an_end_changes_nothing(at: int) -> None:
    assert judge([*HEALTHY[:at], *HARMLESS, *HEALTHY[at:]], WANT).reasons == []


def test_the_name_of_a_host_is_no_end() -> None:
    assert judge(Made(hosts=["dead-node-0", "killed-worker-1"]).lines(), WANT).reasons == []


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
    assert with_line(line, 0).reasons == []


@BOUNDED
@given(RETRIED.filter(lambda line: not line.startswith("ssh: ")), PLACE)
def test_a_connection_that_is_lost_while_the_program_runs_is_shown(line: str, at: int) -> None:
    verdict = with_line(line, at)
    assert not verdict.passed or verdict.remarks
