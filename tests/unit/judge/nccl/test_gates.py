"""Each gate refuses what it is for, by its own name, and lack of evidence is never a pass."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from busbar.judge.nccl import Expectation, JobOutcome, Verdict, judge
from busbar.judge.nccl.log.known import failures
from tests.unit.judge.nccl.logs import HEALTHY, WANT, Made
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases

ROOT = Path(__file__).parents[4]
CODE = re.compile(r'"([a-z-]+\.(?!json)[a-z_]+)"')


def judged(*info: str) -> Verdict:
    """The verdict on a healthy log in which NCCL also says INFO."""
    return judge(Made(info=list(info)).lines(), WANT)


def test_a_verdict_names_the_plugin_and_the_row_of_its_bandwidth() -> None:
    log = Log(cases()["the reference system, every line tagged"])
    verdict = judge(log.lines, Expectation(profile="h100-crusoe", nodes=2))
    assert verdict.plugin_path == "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"
    largest = next(i for i, line in enumerate(log.lines, 1) if "2147483648     536870912" in line)
    assert verdict.check("busbw").line == largest


def test_a_log_of_a_system_that_was_not_given_asks_for_it() -> None:
    for gate in ("rails", "busbw"):
        assert judge(Made().lines(), Expectation()).check(gate).fix.startswith("pass --profile")
        assert not judged().check(gate).fix


def test_several_collectives_in_one_log_are_judged_one_by_one() -> None:
    second = Made(name="all_gather")
    want = Expectation(profile="h100-ib-8x400", nodes=2, collectives=["all_reduce", "all_gather"])
    verdict = judge([*Made().lines(), *second.lines()], want)
    assert verdict.verdict == "pass", verdict.reasons
    assert list(verdict.collectives) == ["all_reduce", "all_gather"]
    second.peak = 100.0
    slow = judge([*Made().lines(), *second.lines()], want)
    assert slow.verdict == "fail" and slow.collectives["all_reduce"].passed
    assert judge(Made().lines(), want).check("collective").status == "fail"


def test_wrong_data_in_a_collective_that_was_not_asked_for_fail() -> None:
    want = Expectation(profile="h100-ib-8x400", nodes=2, collectives=["all_reduce"])
    verdict = judge([*Made().lines(), *Made(name="all_gather", wrong="3").lines()], want)
    assert (verdict.verdict, verdict.check("correctness").status) == ("fail", "fail")


def test_what_the_log_says_was_simulated_is_in_the_verdict() -> None:
    verdict = judge(["# simulated: CPU program in place of nccl-tests", *Made().lines()], WANT)
    assert verdict.simulated == "CPU program in place of nccl-tests"


def test_a_failed_bitwise_check_fails() -> None:
    log = Made().lines()
    at = next(i for i, line in enumerate(log) if line.startswith("# Avg"))
    log.insert(at, "# Bitwise mismatches   : 0 OK")
    assert judge(log, WANT).passed
    for printed in ("3 FAILED", "3", "0 FAILED"):
        log[at] = f"# Bitwise mismatches   : {printed}"
        assert judge(log, WANT).check("correctness").status == "fail"


def test_edges_behind_a_table_of_one_size_do_not_prove_it() -> None:
    made = Made()
    made.low = made.high
    log = made.lines()
    info = [line for line in log if "NCCL INFO Channel" in line]
    late = [*(line for line in log if line not in info), *info]
    status = {
        name: judge(lines, WANT).check("transport").status for name, lines in (("in", log), ("late", late))
    }
    assert (status["in"], status["late"] == "pass") == ("pass", False)


def test_a_warning_whose_place_has_blanks_is_still_a_warning() -> None:
    line = (
        "[2026-01-01 12:08:32] worker-0:40:71 [0] int handle_error(context_t*, fid_cq*, uint16_t):46 "
        "NCCL WARN NET/OFI Request 0x7f completed with error. Error: Invalid receiver queue pair number"
    )
    check = judged(line).check("warnings")
    assert (check.status, "NET/OFI Request" in str(check.evidence)) == ("fail", True)


def test_a_gate_gives_every_code_that_is_read() -> None:
    own, fabric = ROOT / "busbar" / "judge" / "nccl", ROOT / "busbar" / "fabric"
    named = {code for failure in failures() for code in (*failure.codes, *failure.unless)}
    named |= _codes(own / "report") | _codes(fabric)
    assert named - _codes(own / "checks") - {"job.failed"} == set()


def _codes(folder: Path) -> set[str]:
    """The words in the sources of FOLDER that begin with the name of a gate."""
    gates = {check.name for check in judge(Made().lines(), WANT, JobOutcome(True)).checks}
    words = {word for path in folder.rglob("*.py") for word in CODE.findall(path.read_text())}
    return {word for word in words if word.partition(".")[0] in gates}


def test_every_gate_stands_in_the_docs() -> None:
    text = (ROOT / "docs" / "nccl.md").read_text()
    gates = [check.name for check in judge(Made().lines(), WANT, JobOutcome(True)).checks]
    assert [name for name in gates if f"`{name}`" not in text] == []


FEW_PAIRS = ("sendrecv", "gather", "scatter")
EDGE = "worker-0:40:90 [0] NCCL INFO Channel 09/0 : 0[0] -> 8[0] [send] via NET"


def test_both_of_two_messages_in_one_line_are_read() -> None:
    peer = EDGE.replace("[send]", "[receive]")
    verdict = judged(f"{EDGE}/IB/1{peer}/IB/1/GDRDMA")
    assert "1 of 34 edges" in verdict.check("gdrdma").reason
    error = "worker-1:40:99 [6] NCCL WARN NET/IB: Got completion from peer 10.0.0.5<1> with status=12"
    assert judged(f"{EDGE}/IB/1/GDRDMA{error}").check("warnings").code == "warnings.known_failure"


def test_a_damaged_message_inside_another_proves_nothing() -> None:
    inside = "worker-1:40:99 [6] NCC INFO Using network IB"
    verdict = judged(f"worker-0:40:90 [0] NCCL INFO comm 0x5 {inside}")
    assert verdict.check("transport").code == "transport.unread_message"


@pytest.mark.parametrize("transport", ["/IB/1/GDRDMA_OFF", "/IB/1/GDRDMA/x", "/IB", " IB 1"])
def test_an_edge_in_an_unknown_form_proves_nothing(transport: str) -> None:
    verdict = judged(f"{EDGE}{transport}", f"{EDGE}{transport}".replace("[send]", "[receive]"))
    assert verdict.check("transport").code == "transport.unread_edge" and not verdict.passed


@pytest.mark.parametrize("text", ["Ring 00 : 15 -> 0 -> 7 via FOO/0", "Tree 8 : 1 -> 0 -> 8 [send] by FOO/0"])
def test_a_ring_that_names_a_transport_is_an_edge_in_an_unknown_form(text: str) -> None:
    verdict = judged(f"worker-0:40:90 [0] NCCL INFO {text}")
    assert verdict.check("transport").code == "transport.unread_edge"


@pytest.mark.parametrize(
    "text",
    ["Ring 00 : 15 -> 0 -> 7", "Tree 8 : 1 -> 0 -> 8/-1/-1", " 0 : NET/0 GPU/0 GPU/7 NET/0"],
)
def test_a_ring_or_path_of_the_subsystem_graph_is_no_edge(text: str) -> None:
    assert judged(f"worker-0:40:90 [0] NCCL INFO {text}").passed


# ---- one thing is wrong in an otherwise healthy log
SOCKET = "worker-0:40:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0"
FATAL = "worker-0:40:90 [0] net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.0.0.5<5> with status=12"


def changed(pattern: str, new: str, only: str = "") -> list[str]:
    """The made log with NEW in place of PATTERN, in each line that holds ONLY."""
    lines = Made().lines()
    found = [re.sub(pattern, new, line) if only in line else line for line in lines]
    assert found != lines
    return found


@pytest.mark.parametrize(("columns", "why"), [(r"none      -1", "redop none"), (r" sum       0", "root 0")])
def test_the_columns_of_a_table_are_those_of_the_collective_that_is_named(columns: str, why: str) -> None:
    check = judge(changed(r" sum      -1", columns), WANT).check("collective")
    assert (check.status, check.code) == ("unknown", "collective.uncertain")
    assert check.reason.endswith(f"printed: all_reduce_perf, but its rows have {why})")


@pytest.mark.parametrize(
    "name", ["all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv"]
)
def test_a_collective_is_certain_with_the_columns_that_it_prints(name: str) -> None:
    assert judge(Made(name=name).lines(), WANT).check("collective").status == "pass"


@pytest.mark.parametrize(("hosts_per_rack", "uses"), [(1, "fail"), (2, "unknown")])
def test_a_host_of_a_rack_need_not_use_all_of_its_rails(hosts_per_rack: int, uses: str) -> None:
    made = Made(hosts=[f"worker-{i}" for i in range(4)])
    want = WANT.model_copy(update={"nodes": 4, "nodes_per_domain": hosts_per_rack})
    assert judge([x for x in made.lines() if "via NET/IB/7" not in x], want).check("rails").status == uses


@pytest.mark.parametrize(
    ("name", "uses"), [("all_gather", "fail"), *[(n, "not-required") for n in FEW_PAIRS]]
)
def test_programs_that_join_few_ranks_of_two_hosts_need_not_use_all_rails(name: str, uses: str) -> None:
    log = [x for x in Made(name=name).lines() if "via NET" not in x or "via NET/IB/0" in x]
    assert judge(log, WANT).check("rails").status == uses


def test_a_port_that_is_listed_twice_is_one_hca() -> None:
    check = judge(changed(r"\[7\]mlx5_7:1", "[7]mlx5_0:1"), WANT).check("hcas")
    assert (check.status, check.code) == ("fail", "hcas.too_few")


@pytest.mark.parametrize("form", ["_dma:1", ":1:0:1", ":1::1"])
def test_an_hca_with_data_direct_or_with_rail_and_plane_keeps_its_name_and_rate(form: str) -> None:
    made = Made()
    line = "NET/IB: [3] mlx5_3:uverbs3:1/IB provider=Mlx5 speed={} context=0x7f00 pciPath=/sys/x ar=1"
    for rate, status in ((400000, "pass"), (200000, "fail")):
        made.info = [f"worker-1:43:90 [3] NCCL INFO {line.format(rate)}"]
        log = [re.sub(r"(mlx5_\d):1", rf"\1{form}", line) for line in made.lines()]
        want = WANT.model_copy(update={"hcas": [f"mlx5_{d}" for d in range(8)]})
        assert judge(log, want).check("hcas").status == status


def test_two_ports_of_one_hca_are_two() -> None:
    assert judge(changed(r"\[7\]mlx5_7:1", "[7]mlx5_0:2"), WANT).check("hcas").status == "pass"


def test_an_edge_over_the_network_between_gpus_of_one_host_is_named() -> None:
    made = Made()
    made.info = [
        f"worker-0:{40 + rank}:90 [{rank}] NCCL INFO Channel 00/1 : 0[0] -> 1[1] [{way}] via NET/IB/0/GDRDMA"
        for rank, way in enumerate(("send", "receive"))
    ]
    assert judge(made.lines(), WANT).passed  # of another connection: not an edge of the collective
    made.info = [line.replace("00/1", "00/0") for line in made.info]
    check = judge(made.lines(), WANT).check("transport")
    assert (check.status, check.code) == ("fail", "transport.net_inside_node")
    assert "channel 0 from rank 0 to 1, both on worker-0" in check.reason
    apart = Expectation(profile="h100-ib-8x400", nodes=2, nvlink_gbps=0)
    assert judge(made.lines(), apart).check("transport").status == "pass", "NVLink does not join them"


@pytest.mark.parametrize(("channel", "code"), [("00/1", "as_expected"), ("00/0", "one_sided")])
def test_both_ends_of_a_pair_outside_of_rings_may_use_their_own_hca(channel: str, code: str) -> None:
    made, edge = Made(), f"NCCL INFO Channel {channel} : 7[7] -> 8[0]"
    made.info = [
        f"worker-0:47:90 [7] {edge} [send] via NET/IB/7/GDRDMA/Shared",
        f"worker-1:40:90 [0] {edge} [receive] via NET/IB/0/GDRDMA/Shared",
    ]
    assert judge(made.lines(), WANT).check("transport").code == f"transport.{code}"


@pytest.mark.parametrize(("profile", "status"), [("h100-sharp", "pass"), ("h100-ib-8x400", "unknown")])
def test_edges_to_switches_prove_the_fabric_where_they_reduce(profile: str, status: str) -> None:
    log = changed(
        r"Channel (.*)\[\d\] -> .* (\[\w+\]) via NET/IB", r"CollNet \1 \2 via COLLNET/SHARP", "via NET"
    )
    verdict = judge(log, Expectation(profile=profile, nodes=2))
    assert {verdict.check(gate).status for gate in ("transport", "gdrdma", "rails")} == {"pass", status}
    assert verdict.transport == "gpudirect-rdma"


def test_an_edge_to_a_switch_hides_no_rail_that_the_rings_do_not_use() -> None:
    made = Made()
    made.info = [
        f"{host}:40:90 [0] NCCL INFO CollNet 00/0 : 0 [send] via COLLNET/SHARP/{device}/GDRDMA"
        for host in made.hosts
        for device in range(8)
    ]
    log = [line for line in made.lines() if "via NET/IB/7" not in line]
    assert judge(log, WANT).check("rails").code == "rails.wrong_count"


@pytest.mark.parametrize("hidden", [SOCKET, FATAL, "# Out of bounds values : 9 FAILED"])
@pytest.mark.parametrize("length", [8100, 8192, 20_000])
def test_what_stands_too_far_behind_in_a_line_costs_the_pass(hidden: str, length: int) -> None:
    lines = Made().lines()
    verdict = judge([*lines[:40], "x" * length + " " + hidden, *lines[40:]], WANT)
    assert not verdict.passed


@pytest.mark.parametrize(
    "line",
    [
        "worker-0:40:90 [0] NCCL INFO Channel 00/32 : " + " ".join(map(str, range(4000))),
        "+ mpirun -host " + ",".join(f"worker-{n}.nccl.svc:8" for n in range(1000)),
    ],
)
def test_a_long_list_of_ranks_or_hosts_is_no_damage(line: str) -> None:
    lines = Made().lines()
    assert judge([*lines[:40], line, *lines[40:]], WANT).reasons == []


PREFIXES: dict[str, Callable[[int], str]] = {
    "stern": lambda _: "nccl-launcher-x7k mpi ",
    "line numbers": lambda n: f"{n:6d}\t",
    "seconds": lambda n: f"17252640{n:02d}.123456 ",
    "compose": lambda _: "worker-0  | ",
    "pdsh twice": lambda _: "10.0.0.7: 10.0.0.7: ",
    "srun": lambda n: f"{n}: ",
    "torchrun": lambda _: "[default0]:",
    "pdsh": lambda _: "worker-0: ",
    "logcli": lambda n: f'2026-11-25T10:00:{n % 60:02d}Z {{app="nccl", pod="x7-{n}"}} ',
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_interrupted_row_is_put_together_behind_any_prefix(prefix: str) -> None:
    lines = Log(cases()["a row interrupted by messages"]).lines
    plain = judge(lines, WANT)
    wrapped = judge([PREFIXES[prefix](n) + line for n, line in enumerate(lines, 1)], WANT)
    assert wrapped.check("completeness").status == plain.check("completeness").status == "pass"
    assert wrapped.busbw_gbps == plain.busbw_gbps


ENDS = ("bash: line 1:    41 Killed                  ./all_reduce_perf -b 8", "Exit code:    3", "Terminated",
        "Connection to worker-1 closed by remote host.", "bash: line 1:    41 Trace trap   ./all_reduce_perf",
        "./run.sh: line 4:   123 Aborted                 ./all_reduce_perf")  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_failed_does_not_pass_behind_any_prefix(prefix: str, end: str) -> None:
    lines = [PREFIXES[prefix](n) + line for n, line in enumerate([*HEALTHY, end], 1)]
    assert judge(lines[:-1], WANT).passed and not judge(lines, WANT).passed


@pytest.mark.parametrize("label", ["[1,0]<stdout>:", "[prterun-l-19@1,0]<stdout>: ", "0: "])
@pytest.mark.parametrize("end", [ENDS[0], *(f"[1,9]<stderr>:{end}" for end in ENDS[:3])])
def test_a_launcher_prints_its_own_lines_without_the_label_of_a_rank(label: str, end: str) -> None:
    lines = [f"nccl-launcher-x7k mpi {line}" for line in (*(label + line for line in HEALTHY), end)]
    assert judge(lines[:-1], WANT).passed and not judge(lines, WANT).passed


def case(name: str, *changes: tuple[str, str], add: str = "") -> list[str]:
    """Lines of a made case: in the last line with the first text of a pair, the second; ADD before all."""
    lines = list(Log(cases()[name]).lines)
    for old, new in changes:
        at = max(i for i, line in enumerate(lines) if old in line)
        lines[at] = lines[at].replace(old, new)
    at = next(i for i, line in enumerate(lines) if "NCCL INFO" in line)
    return [*lines[:at], add, *lines[at:]] if add else lines


CHOICE = (
    "worker-0:40:90 [0] NCCL INFO AllReduce: {} Bytes -> Algo {} proto SIMPLE channel{{Lo..Hi}}={{0..15}}"
)


@pytest.mark.parametrize(
    ("size", "algorithm", "status"),
    [
        (8589934592, "RING", "fail"),
        (8589934592, "NVLS_TREE", "fail"),
        (17179869184, "TREE", "fail"),
        (8589934592, "COLLNET_DIRECT", "pass"),
        # small messages may take another way
        (1024, "TREE", "pass"),
    ],
)
def test_the_switches_reduce_the_largest_message(size: int, algorithm: str, status: str) -> None:
    lines = case("reductions in the switches", add=CHOICE.format(size, algorithm))
    check = judge(lines, Expectation(profile="h100-sharp", nodes=2)).check("sharp")
    assert check.status == status
    assert (check.code == "sharp.other_algorithm") == (status == "fail")


def test_nvls_between_hosts_reduces_in_the_switches_too() -> None:
    lines = case("reductions in the switches", *[("COLLNET_CHAIN", "NVLS")] * 2)
    assert judge(lines, Expectation(profile="h100-sharp", nodes=2)).check("sharp").code == "sharp.used"


def test_a_host_that_does_not_use_nvlink_between_hosts_fails_its_rack() -> None:
    lines = case("four hosts of one rack", ("MNNVL 1", "MNNVL 0"))
    check = judge(lines, Expectation(profile="gb200-nvl72", nodes=4)).check("mnnvl")
    assert (check.status, check.code) == ("fail", "mnnvl.not_working")
