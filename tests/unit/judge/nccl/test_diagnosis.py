"""Each known failure is recognized by a line of its own, and by its place in the log."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from busbar.judge.nccl import Expectation, Verdict, judge
from busbar.judge.nccl.expected.profiles import read_yaml
from busbar.judge.nccl.log.known import VALUE, Failure, LineRules, failures
from busbar.judge.nccl.log.known import failure as failure_named
from busbar.judge.nccl.log.records import Stage
from tests.diagnosis_page import LINES, PAGE, generated
from tests.unit.judge.nccl.logs import WANT, Made

LINE_RULES = [failure for failure in failures() if failure.lines]


def test_every_text_of_a_rule_is_found_whatever_stands_around_it() -> None:
    rows = [
        row for failure in failures() for row in failure.lines if not row.matches and not row.before_start
    ]
    for text in (text for row in rows for text in row.contains):
        for line in (text, f"worker-0: {text}: 3", f"({text})", f"7{text}"):
            found = LineRules()
            found.look(line, 1)
            found.look(line, 2, stage="table")
            assert found.known, line


PLUGIN_OF_ANOTHER_LIBFABRIC = (
    "w-1:41:41 [0] NCCL INFO NET/Plugin : dlerror=/opt/lib/libfabric.so.1: version `FABRIC_1.7' not found "
    "(required by /opt/lib/libnccl-net.so) No plugin found (libnccl-net.so), using internal implementation"
)
OTHER_FORMS = {
    "prterun noticed that process rank 3 with PID 9 on node w1 exited on signal 11 (Segmentation).": "crash",
    "./run.sh: line 4: 123 Segmentation fault      (core dumped) all_reduce_perf -b 8": "crash",
    "[worker-1:57   :0:57] Caught signal 11 (Segmentation fault: address not mapped)": "crash",
    "terminate called after throwing an instance of 'std::runtime_error'": "rank-failed",
    " .. worker-1 pid 41: Test failure common.cu:1012": "test-failure",
    "worker-1:41:200 [1] NCCL WARN NET/IB : mlx5_4:1 async fatal event: local catastrophic": "link-error",
    "worker-1:41:200 [1] NCCL WARN NET/IB : mlx5_1:1 Got non-fatal async event: port error(10)": "link-error",
    "w-1:41:200 [1] NCCL INFO NET/IB : mlx5_4:1 speed change detected: 200000 -> 100000 Mbps": "link-error",
}
OWN_WORDS = {
    "[C25L18:0:24972 - comm.c:374] ERROR Failed to lock SAT tree(ID:0x40 ret:0x4)": "sharp-denied",
    "[C25L19:1:2 unique id 1] ERROR collect_ports_data: failed to find valid ports": "sharp-denied",
    "NCCL WARN NET/IB : SHARP coll init error: Cannot create SHARP job(-11)": "sharp-denied",
    "libibverbs: Warning: no userspace device-specific driver found for uverbs0": "rdma-provider-refused",
    "Libfabric error: (-12) Cannot allocate memory": "memlock",
    "w-1:41:90 [1] NCCL WARN Call to ibv_create_qp failed with error Unknown error -12": "memlock",
    "NCCL WARN HIP failure 'the operation cannot be performed in the present state'": "cuda-failure",
    "worker-1: transport/nvls.cc:598 NCCL WARN Cuda failure 1 'invalid argument'": "nvls-multicast",
    PLUGIN_OF_ANOTHER_LIBFABRIC: "ofi-plugin-not-initialized",
}


@pytest.mark.parametrize(("line", "name"), [*OTHER_FORMS.items(), *OWN_WORDS.items()])
def test_a_failure_in_other_words_is_named(line: str, name: str) -> None:
    start = Made().lines()[:3]
    assert name in [
        d.name for d in judge([*start, line], Expectation()).diagnoses if d.line == len(start) + 1
    ]


@pytest.mark.parametrize("line", OTHER_FORMS)
def test_a_job_that_failed_does_not_pass_with_a_whole_table(line: str) -> None:
    assert judge([*Made().lines(), line], WANT).verdict == "fail"


@pytest.mark.parametrize(
    "line",
    [
        "worker-0:40:200 [0] transport/net_ib.cc:99 NCCL WARN NET/IB : mlx5_3:1 Got async event : LID change",
        "worker-0:40:200 [0] NCCL WARN NET/IB : mlx5_1:1 Got non-fatal async event: port active(9)",
        "worker-0:40:40 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 32 nics)",
        "command terminated with exit code 0",
    ],
)
def test_a_line_that_only_resembles_a_failure_changes_nothing(line: str) -> None:
    verdict = judge([*Made().lines(), line], WANT)
    assert verdict.verdict == "pass"


@pytest.mark.parametrize(
    "conditions", [{}, {"contains": ["a"], "codes": ["rails.wrong_count"]}, {"matches": "a"}]
)
def test_a_rule_has_one_condition_and_a_line_rule_a_text(conditions: dict[str, object]) -> None:
    words = dict.fromkeys(("name", "meaning", "cause", "next"), "x")
    with pytest.raises(ValidationError, match="failure x: "):
        Failure.model_validate({**words, "severity": "note", **conditions})


def test_the_tables_of_the_page_on_diagnoses_are_current() -> None:
    page = PAGE.read_text()
    assert generated(page) == page, "make docs"


def test_every_line_of_a_known_failure_counts_whatever_stood_before_it() -> None:
    for rule in LINE_RULES:
        found = LineRules()
        shown = LINES[rule.name]
        texts = ("rank 12 of 40 waits", shown, "rank 13 of 40", shown)
        for line, text in enumerate(texts, 1):
            found.look(text, line, stage=rule.stages[0])
        known = found.known[rule.name]
        assert (known.count, known.first.line) == (2, 2)


BOUNDED = settings(max_examples=25)
PROCESS = "worker-1:43:90 [3] NCCL INFO "
STAGES: tuple[Stage, ...] = ("before", "table", "after")
VALUES = st.sampled_from(["7", "10.0.0.2<45231>", "0x7f2e5c001000", "send", "mlx5_3"])
TEXTS = [
    (each["name"], text)
    for each in read_yaml("busbar.judge.nccl.log", "failures.yaml")
    if isinstance(each.get("contains"), dict) and "matches" not in each
    for texts in each["contains"].values()
    for text in texts
]


def with_line(line: str, stage: Stage) -> Verdict:
    """The healthy log with LINE at STAGE."""
    return judge(Made().lines_with(line, stage), WANT)


@BOUNDED
@given(st.sampled_from(TEXTS), VALUES, st.sampled_from(["", "ncclFunction: "]), st.data())
def test_every_listed_text_shows_its_rule_whatever_its_values_are(
    row: tuple[str, str], value: str, before: str, data: st.DataObject
) -> None:
    found = failure_named(row[0])
    stage = data.draw(st.sampled_from(found.stages))
    verdict = with_line(PROCESS + before + VALUE.sub(lambda _: value, row[1]), stage)
    doubted = found.no_verdict or stage == "table"
    expected = "fail" if found.severity == "fatal" else "unknown" if doubted else "pass"
    assert verdict.verdict == expected
    assert row[0] in [d.name for d in verdict.diagnoses]


@BOUNDED
@given(st.sampled_from([r for r in failures() if r.stages != STAGES]))
def test_a_text_that_counts_at_some_stages_changes_nothing_at_the_others(each: Failure) -> None:
    for stage in set(STAGES) - set(each.stages):
        assert with_line(LINES[each.name], stage).reasons == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_text_that_no_rule_knows_changes_nothing(stage: Stage) -> None:
    verdict = with_line(f"{PROCESS}NET/New : Failed to do 7", stage)
    assert verdict.passed and verdict.remarks == []


def test_the_probes_of_a_second_program_are_not_behind_a_table() -> None:
    made = Made(info=[PROCESS + "misc/cudawrap.cc:95 -> 3", PROCESS + "NET/New : Failed to do 7"])
    assert judge([*Made().lines(), *made.lines()], WANT).check("warnings").status == "pass"


@pytest.mark.parametrize(
    ("state", "mask", "verdict"),
    [
        (3, "0", "pass"), (3, "1aa", "pass"), (3, "2aa", "fail"), (3, "1a9", "fail"), (3, "1a6", "fail"),
        (3, "19a", "fail"), (3, "16a", "fail"), (1, "0", "fail"), (2, "1aa", "fail"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_not_sound_in_the_nvlink_fabric_fails(state: int, mask: str, verdict: str) -> None:
    line = f"{PROCESS}MNNVL busId 0x1 fabric UUID 0.0 cliqueId 0x0 state {state} healthMask 0x{mask}"
    assert with_line(line, "before").verdict == verdict


CANCELLED = "slurmstepd: error: *** STEP 1.0 ON n-1 CANCELLED AT 2026-05-05T10:00:00 ***"
OF_OTHERS = {
    "cudaGetDeviceCount(). Error 802: system not yet initialized": "gpu-system-not-ready",
    "RuntimeError: CUDA error: no kernel image is available for execution": "no-kernel-image",
    "[PG 0 Rank 1] Heartbeat monitor timed out! Process will be terminated": "test-timeout",
    "Received a dump signal due to a collective timeout from  rank 13": "test-timeout",
    "[3] is setting up NCCL, but store->get('0') got error: Socket Timeout": "rendezvous-failed",
    f"The server socket has failed to listen on any address.\n{CANCELLED}": "errno-address-in-use",
    f"slurmstepd: error: mpi/pmix_v3: n-1 [0]: collective timeout seq=0\n{CANCELLED}": "mpi-not-initialized",
    "Last error:\nCall to recv from 10.0.0.1<3> failed : Connection reset by peer": "errno-refused",
    "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types": "launch-refused",
    "srun: error: Task launch for StepId=1.0 failed on node n-1: Invalid job credential\n"
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.": "launch-refused",
    "All nodes which are allocated for this job are already filled.": "not-enough-slots",
    "Access denied by pam_slurm_adopt: you have no active jobs on this node\n"
    "Connection closed by 10.0.0.5 port 22": "ssh-refused",
    'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].':
        "container-not-started",
    "A process or daemon was unable to complete a TCP connection\n"
    "ORTE was unable to reliably start one or more daemons.": "mpi-transport",
    "[mpiexec@n-0] check_exit_codes (d.c:117): unable to run bstrap_proxy on n-1 (pid 2, exit code 65280)":
        "mpi-daemons-not-started",
    "=   KILLED BY SIGNAL: 9 (Killed)": "out-of-host-memory",
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)": "out-of-host-memory",
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)": "crash",
    "HYDU_create_process (launch.c:73): execvp error on file ./x_perf (No such file)": "program-not-started",
    "[rank3]: Last error:\n[rank3]: Cuda failure 1 'invalid argument'": "cuda-failure",
}  # fmt: skip


@pytest.mark.parametrize(("said", "name"), OF_OTHERS.items())
def test_a_cause_is_named_in_the_words_of_pytorch_and_slurm(said: str, name: str) -> None:
    log = [*said.splitlines(), "srun: error: n-1: task 3: Exited with exit code 1"]
    assert judge(log, WANT).diagnoses[0].name == name


def test_a_host_whose_driver_differs_from_its_module_does_not_pass() -> None:
    line = "Failed to initialize NVML: Driver/library version mismatch"
    assert with_line(line, "before").verdict == "unknown"
