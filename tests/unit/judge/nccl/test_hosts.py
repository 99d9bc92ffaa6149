"""A fact that the hosts of a run print is compared by a gate, or its differences are shown."""

import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Expectation, Verdict, judge
from busbar.judge.nccl.checks.hosts import SAME, agreement
from busbar.judge.nccl.log.evidence import FACTS, Evidence, Fact
from busbar.judge.nccl.report.html import Origin, render_html
from busbar.judge.nccl.report.terminal import verdict_text
from tests.support import shared
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.tables import context, printed, said

HEAD = "worker-{}:4{}:90 [{}] NCCL INFO "
OF_HOSTS = [fact for fact in FACTS if fact.of_host]


def log(*messages: tuple[int, str], **changes: Any) -> Verdict:
    """The verdict on the healthy log, with messages of the first process of a host (by its number)."""
    return judge(lines(*messages, **changes), WANT)


def differences(verdict: Verdict) -> list[str]:
    """The facts that hosts print differently, and that no gate compares."""
    return [remark.text for remark in verdict.remarks if remark.kind == "differs"]


def lines(*messages: tuple[int, str], **changes: Any) -> list[str]:
    info = [HEAD.format(host, 0, 0) + text for host, text in messages]
    return Made(info=info, **changes).lines()


def others(fact: Fact) -> Iterator[str]:
    """Messages as the example of FACT, with other values of the same fact."""
    found = fact.pattern.search(fact.example)
    assert found is not None, fact.example
    start, end = found.span("value")
    value = found["value"]
    changed = [f"{value[:at]}{'71' [c == '7'] if c.isdigit() else 'xq'[c == 'x']}{value[at + 1 :]}"
               for at, c in enumerate(value) if c.isalnum()]  # fmt: skip
    for new in [*changed, value.removeprefix("not "), f"not {value}"]:
        text = fact.example[:start] + new + fact.example[end:]
        other = fact.pattern.search(text)
        if other is not None and other.groupdict() == {**found.groupdict(), "value": new} and new != value:
            yield text


def name(fact: Fact) -> str:
    found = fact.pattern.search(fact.example)
    return fact.of_host.format(found.groupdict().get("key", "")) if found is not None else ""


@settings(max_examples=80)
@given(st.sampled_from(OF_HOSTS), st.sampled_from([0, 1]), st.data())
def test_a_fact_that_differs_on_one_host_is_compared_or_shown(
    fact: Fact, odd: int, data: st.DataObject
) -> None:
    other = data.draw(st.sampled_from(list(others(fact))))
    same = log((0, fact.example), (1, fact.example))
    assert differences(same) == []
    verdict = log((odd, other), (1 - odd, fact.example))
    if fact.of_host in SAME:
        assert f"{fact.of_host}: " in verdict.check("agreement").reason
        return
    shown = re.sub(r"\s+", " ", verdict_text(verdict, io.StringIO()))
    assert f"the hosts differ: {name(fact)}: " in shown
    (text,) = differences(verdict)
    assert "on worker-0" in text and "on worker-1" in text


@pytest.mark.shared
@pytest.mark.parametrize("log_name", shared.log_names())
def test_hosts_of_a_public_run_do_not_differ(log_name: str) -> None:
    assert differences(judge(shared.log_lines(log_name), Expectation())) == []


def test_the_rarest_value_comes_first_and_stands_in_each_report() -> None:
    hosts = [f"worker-{n}" for n in range(6)]
    made = Made(
        hosts=hosts,
        info=[HEAD.format(n, 0, 0) + f"NCCL_IB_TC set by environment to {106 * (n != 4)}" for n in range(6)],
    )
    verdict = judge(made.lines(), Expectation(profile="h100-ib-8x400", nodes=6, expected_busbw_gbps=390))
    text = "NCCL_IB_TC: 0 on worker-4; 106 on worker-0, worker-1, worker-2 and 2 more"
    assert verdict.passed and differences(verdict) == [text]
    assert f"the hosts differ: {text}" in re.sub(r"\s+", " ", verdict_text(verdict, io.StringIO()))
    assert text in re.sub(r"\s+", " ", verdict_text(verdict, io.StringIO(), full=True))
    assert text in render_html(verdict, Origin("x.log"))


def test_a_variable_that_only_one_host_prints_is_a_difference_in_a_whole_log() -> None:
    messages = [(host, "NCCL_DEBUG_SUBSYS set by environment to ALL") for host in (0, 1)]
    only = (1, "NCCL_IB_TC set by environment to 106")
    assert differences(log(*messages, only)) == ["NCCL_IB_TC: 106 on worker-1; not printed on worker-0"]
    excerpt = [line for line in lines(*messages, only) if "nThread" not in line]
    assert differences(judge(excerpt, WANT)) == []


def gpus(other: str) -> Verdict:
    """The verdict where the ranks with OTHER in their line have GPUs of another memory."""
    return judge([re.sub("80GB HBM3", "64GB HBM2", x) if other in x else x for x in lines()], WANT)


def test_hosts_may_have_other_gpus_and_a_host_of_two_kinds_leaves_no_verdict() -> None:
    verdict = gpus("on   worker-1")
    assert verdict.passed and differences(verdict)[0].startswith("GPU: NVIDIA H100 80GB HBM3 on worker-0; ")
    assert gpus("Rank 12").check("agreement").code == "agreement.mixed_gpus"


def test_edges_of_another_kind_inside_a_host_are_a_difference() -> None:
    link = "Channel 00/0 : 0[0] -> 1[1] via P2P/"
    found = differences(log((0, f"{link}CUMEM"), (1, f"{link}IPC/read")))
    assert found == ["edges inside a host: P2P/CUMEM on worker-0; P2P/IPC/read on worker-1"]


# ---- the rate of HCAs
def port(device: int, mbps: int) -> str:
    return f"NET/IB: [{device}] mlx5_{device}:uverbs{device}:1/IB provider=Mlx5 speed={mbps} context=0x7f"


def rates(slow: dict[tuple[int, int], int]) -> list[tuple[int, str]]:
    """All ports of both hosts at 400 Gb/s, but those of SLOW: host and device -> Mb/s."""
    return [(h, port(d, slow.get((h, d), 400_000))) for h in (0, 1) for d in range(8)]


def test_an_hca_that_carries_data_below_the_rate_of_a_rail_fails() -> None:
    assert log(*rates({})).passed
    verdict = log(*rates({(1, 5): 200_000}))
    check = verdict.check("hcas")
    assert (check.status, check.code) == ("fail", "hcas.slow")
    assert "rails of 400 Gb/s: mlx5_5 of worker-1 at 200 Gb/s" in check.reason
    assert verdict.diagnoses[0].name == "hca-below-rate"


def test_a_slow_port_without_edges_decides_nothing() -> None:
    assert log(*rates({}), (0, port(8, 25_000)), (1, port(8, 25_000))).passed


def test_hcas_that_are_all_printed_as_slow_beside_a_full_bandwidth_are_no_proof() -> None:
    slow = {(h, d): 200_000 for h in (0, 1) for d in range(8)}
    assert log(*rates(slow)).check("hcas").status == "unknown"
    assert log(*rates(slow), peak=190.0).check("hcas").status == "fail"


def fused(mbps: int = 800_000, name: str = "mlx5_{}+mlx5_{}") -> list[str]:
    """Each two of sixteen HCAs are one device: 16 to 23; the last one of worker-1 has MBPS and NAME."""
    made = Made(devices=8)
    listed = " ".join(f"[{d}]mlx5_{d}:1/IB" for d in range(16))
    made.info = [
        HEAD.format(h, 0, 0)
        + "NET/IB : Made virtual device "
        + f"[{16 + d}] name={(name if (h, d) == (1, 7) else 'mlx5_{}+mlx5_{}').format(2 * d, 2 * d + 1)} "
        + f"speed={mbps if (h, d) == (1, 7) else 800_000} ndevs=2"
        for h in (0, 1)
        for d in range(8)
    ]
    text = "\n".join(made.lines())
    text = re.sub(r"via NET/IB/(\d)", lambda m: f"via NET/IB/{16 + int(m[1])}", text)
    return re.sub(r"(NET/IB : Using ).*?( \[RO\])", rf"\1{listed}\2", text).splitlines()


SIXTEEN = WANT.model_copy(update={"rails": 16, "rate_gbps": 400.0, "expected_busbw_gbps": 390.0})


def test_of_fused_nics_the_members_are_seen() -> None:
    assert judge(fused(), SIXTEEN).passed
    check = judge(fused(mbps=400_000), SIXTEEN).check("hcas")
    assert (check.code, check.status) == ("hcas.slow", "fail") and "mlx5_14 of worker-1" in check.reason
    other = judge(fused(name="mlx5_{}+mlx5_9"), SIXTEEN)
    assert differences(other)[0].startswith("NET device 23: ")
    without = [*fused()[:20], HEAD.format(1, 0, 0) + "NET/IB : GPU Direct RDMA Disabled for HCA 3 'mlx5_3'"]
    assert judge([*without, *fused()[20:]], SIXTEEN).check("gdrdma").status == "unknown"


# ---- NVLS of a board
ONE = Expectation(gpu="H100", gpus_per_node=8, nodes=1)
LOST = "NVLS multicast support is not available on dev 3"
NO_CHANNELS = (
    "16 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer"
)
ENV = "NCCL_DEBUG set by environment to INFO"


def board(*messages: str, peak: float = 367.0, gpus: int = 8) -> Verdict:
    made = Made(
        hosts=["worker-0"],
        devices=0,
        peak=peak,
        gpus=gpus,
        info=[HEAD.format(0, 0, 0) + text for text in messages],
    )
    text = [line for line in made.lines() if gpus == 8 or "TOPO" not in line]
    return judge(text, ONE.model_copy(update={"gpus_per_node": gpus}))


def test_a_board_that_lost_nvls_is_not_held_against_a_ring() -> None:
    for messages in (
        (LOST,),
        (NO_CHANNELS, ENV),
        (LOST, "AllReduce: 8589934592 Bytes -> Algo RING proto SIMPLE"),
    ):
        verdict = board(*messages)
        assert verdict.check("busbw").status == "fail" and "NVLS" in verdict.check("busbw").reason
        assert verdict.diagnoses[0].name == "nvls-lost"
    found = board(LOST, peak=475.0)
    assert found.check("busbw").status == "pass" and found.diagnoses[0].name == "nvls-lost"


@pytest.mark.parametrize(
    ("messages", "gpus", "peak"),
    [
        ((LOST, NO_CHANNELS, "NCCL_NVLS_ENABLE set by environment to 0."), 8, 367.0),
        ((LOST, NO_CHANNELS, "NCCL_ALGO set by environment to Ring"), 8, 367.0),
        ((LOST, NO_CHANNELS, ENV), 4, 367.0),
        ((NO_CHANNELS.replace(" 0 nvls", " 16 nvls"), ENV), 4, 324.0),
    ],
    ids=["turned off", "a ring is asked for", "four GPUs", "channels on four GPUs"],
)
def test_where_nvls_is_not_used_nothing_is_lost_without_it(
    messages: tuple[str, ...], gpus: int, peak: float
) -> None:
    verdict = board(*messages, gpus=gpus, peak=peak)
    assert verdict.check("busbw").status == "pass" and not verdict.diagnoses


# ---- pods of one machine
PODS = """NAME       READY   STATUS    RESTARTS   AGE   IP           NODE
launcher   1/1     Running   0          61s   10.42.1.16   gpu-7    <none>   <none>
worker-0   1/1     Running   0          61s   10.42.1.17   gpu-7    <none>   <none>
worker-1   1/1     Running   1 (5s ago) 61s   10.42.1.18   {}   <none>   <none>"""
EVENTS = """Normal  Scheduled  61s  default-scheduler  Successfully assigned default/worker-0 to gpu-7
Normal  Scheduled  61s  default-scheduler  Successfully assigned default/worker-1 to {}"""


@pytest.mark.parametrize("text", [PODS, EVENTS])
def test_pods_of_one_machine_prove_no_fabric(text: str) -> None:
    check = judge([*text.format("gpu-7").splitlines(), *lines()], WANT).check("transport")
    assert (check.status, check.code) == ("unknown", "transport.one_machine")
    assert "worker-0 and worker-1 are pods of one machine (gpu-7)" in check.reason
    assert judge([*text.format("gpu-8").splitlines(), *lines()], WANT).passed


def test_two_halves_of_a_board_are_noted() -> None:
    text = "\n".join(lines(gpus=4, devices=4))
    want = Expectation(gpu="H100", gpus_per_node=4, nodes=2)
    assert differences(judge(text.splitlines(), want)) == []
    moved = re.sub(r"(on +worker-1 device  \d \[0000:\w)\w", r"\1f", text)
    assert "two pods of one machine" in differences(judge(moved.splitlines(), want))[0]


# ---- UCX, ends and iterations
UCX = "[1764061200.2] [worker-1:43:0] ucp_worker.c:1888 UCX  INFO  ep_cfg[3]: tag({}) rma(rc_mlx5/mlx5_0:1)"


@pytest.mark.parametrize(
    ("network", "lanes", "status"),
    [
        ("UCX", "tcp/eth0 tcp/eth1", "unknown"),
        ("UCX", "rc_mlx5/mlx5_0:1 tcp/eth0", "pass"),
        ("IB", "tcp/eth0", "pass"),
    ],
)
def test_ucx_that_says_tcp_counts_where_it_carries_the_data(network: str, lanes: str, status: str) -> None:
    want = WANT.model_copy(update={"networks": [network]})
    check = judge([*lines(network=network)[:22], UCX.format(lanes), *lines(network=network)[22:]], want)
    assert check.check("transport").status == status


def test_a_rank_that_does_not_end_as_the_others_is_named() -> None:
    ends = [
        HEAD.format(r // 8, r % 8, r % 8) + f"comm 0x5 rank {r} nranks 16 cudaDev 0 - Destroy COMPLETE"
        for r in range(16)
    ]
    assert judge([*lines(), *ends], WANT).diagnoses == []
    verdict = judge([*lines(), *ends[:11], *ends[12:]], WANT)
    assert verdict.check("ranks").code == "ranks.not_destroyed"
    assert "rank 11" in verdict_text(verdict, io.StringIO())


def iterations(text: str) -> Verdict:
    return judge([re.sub(r"warmup iters: \d+ iters: \d+", text, line) for line in lines()], WANT)


def test_a_mean_of_few_iterations_leaves_no_verdict_and_no_warm_up_is_noted() -> None:
    assert iterations("warmup iters: 5 iters: 1").check("stability").code == "stability.few_iterations"
    verdict = iterations("warmup iters: 0 iters: 20")
    assert verdict.passed and [d.name for d in verdict.diagnoses] == ["no-warm-up"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("NET/OFI Selected provider is efa, fabric is efa (found 8 nics)", "agreement.as_expected"),
        ("NET/OFI Selected provider is efa, fabric is efa (found 7 nics)", "agreement.nics_missing"),
        ("NET/OFI Created device with 4 rails (originally found 4 rails)", "agreement.as_expected"),
        ("NET/OFI Created device with 3 rails (originally found 4 rails)", "agreement.rails_missing"),
        ("MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 0 nvlDomainSize 8", "agreement.as_expected"),
        ("MNNVL 1 cliqueId 7ffe cliqueSize 4 cliqueRank 0 nvlDomainSize 8", "agreement.clique_split"),
    ],
)
def test_a_count_is_that_of_its_partner(line: str, code: str) -> None:
    assert log((0, line)).check("agreement").code == code


@pytest.mark.parametrize(
    "evidence",
    [
        printed(networks=said("IBext", 3) | said("IB", 9)),
        printed({"NET/IB/0": 1}, networks=said("IBext", 3)),
        printed(networks=said("IBext", 3), plugin_paths=said("/a.so", 3) | said("/b.so", 9)),
        printed(versions=said("2.28.7", 5) | said("2.19.3", 9)),
    ],
)
def test_processes_with_different_networks_plugins_or_versions_fail(evidence: Evidence) -> None:
    check = agreement(context(Expectation(), evidence=evidence))
    assert (check.status, check.code) == ("fail", "agreement.differs")
    assert check.line not in (3, 5)


FUSED = Expectation(profile="h100-ib-8x400", nodes=2, rails=16, net_devices=8, rate_gbps=200)


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (["NET/IB : Made virtual device [8] name=a+b speed=400000 ndevs=2"], "agreement.as_expected"),
        (["NET/IB : Made virtual device [8] name=a speed=200000 ndevs=1"], "agreement.members_missing"),
        ([], "agreement.not_printed"),
    ],
)
def test_a_fused_nic_has_as_many_members_as_rails_are_expected(made: list[str], code: str) -> None:
    assert judge(lines(*((0, line) for line in made)), FUSED).check("agreement").code == code


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("+ mpirun -np 16 -H a,b /opt/all_reduce_perf -g 1 -n 20", "agreement.as_expected"),
        ("+ mpirun -np 32 -H a,b /opt/all_reduce_perf -b 8 -n 20", "agreement.other_ranks"),
        ("+ srun --ntasks=8 all_reduce_perf -g 1", "agreement.other_ranks"),
        ("+ mpirun -np 8 all_reduce_perf -g 1 : -np 8 all_reduce_perf -g 1", "agreement.as_expected"),
        ("+ srun -N 2 -n 16 all_reduce_perf -b 512M -e 8G", "agreement.as_expected"),
        ("+ srun -N4 -n 16 all_reduce_perf -b 512M -e 8G", "agreement.other_hosts"),
        ("+ mpirun -np 16 all_reduce_perf -b 8 -e 8G", "agreement.other_sizes"),
        ("+ mpirun -np 16 all_reduce_perf --minbytes=512M --maxbytes=16G", "agreement.other_sizes"),
        ('+ mpirun -np 16 all_reduce_perf -b "$LOW" -e "$HIGH"', "agreement.as_expected"),
    ],
)
def test_ranks_hosts_and_sizes_are_those_that_the_command_asked_for(command: str, code: str) -> None:
    for before in ("", "nccl-1  | "):
        log = [f"{before}{line}" for line in (command, *lines())]
        assert judge(log, WANT).check("agreement").code == code
