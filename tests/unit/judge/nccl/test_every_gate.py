"""Every gate has a log that it fails and, where it can be, one that leaves it unknown."""

from collections.abc import Callable
from typing import Any

import pytest

from busbar.judge.nccl import Expectation, JobOutcome, Verdict, judge
from busbar.judge.nccl.checks import GATES
from busbar.judge.nccl.checks.tables import warnings
from busbar.judge.nccl.report.terminal import first_cause
from tests.support.gates import without_case
from tests.unit.judge.nccl.logs import HEALTHY, PLACES, WANT, Made, rack, without

SHARP = Expectation(profile="h100-sharp", nodes=2)
RACK = Expectation(profile="gb200-nvl72", nodes=18)
HEAD = "worker-1:40:90 [3] NCCL"


def of(want: Expectation = WANT, **changes: Any) -> Verdict:
    return judge(Made(**changes).lines(), want)


def lacking(*words: str, want: Expectation = WANT) -> Verdict:
    """On a healthy log without the lines that have one of these words; "" is in all of them."""
    return judge(without(*words)(Made().lines()), want)


def asked(**values: Any) -> Expectation:
    return WANT.model_copy(update=values)


def ended(succeeded: bool | None) -> Verdict:
    return judge(Made().lines(), WANT, JobOutcome(succeeded))


def in_rack(**changes: Any) -> Verdict:
    made = Made()
    rack(made)
    for name, value in changes.items():
        setattr(made, name, value)
    return judge(made.lines(), RACK)


def healthy(old: str, new: str, only: str = "") -> Verdict:
    """On the healthy log with NEW in place of OLD in the lines that have ONLY."""
    return judge([line.replace(old, new) if only in line else line for line in HEALTHY], WANT)


Case = Callable[[], Verdict]

FAILS: dict[str, Case] = {
    "job.failed": lambda: ended(False),
    "source.ends_after_device_list": lambda: judge(HEALTHY[: PLACES["start"] + 16], WANT),
    "collective.missing": lambda: of(asked(collectives=["all_reduce", "all_gather"])),
    "ranks.other_factor": lambda: of(ranks=8),
    "ranks.wrong_nodes": lambda: of(asked(nodes=3)),
    "ranks.other_gpu": lambda: of(gpu="NVIDIA A100-SXM4-80GB"),
    "completeness.other_sizes": lambda: lacking("  1073741824  "),
    "completeness.ends_between_rows": lambda: judge(HEALTHY[: PLACES["among"]], WANT),
    "correctness.wrong_values": lambda: of(wrong="3"),
    "nccl-version.too_old": lambda: of(asked(min_nccl="2.29")),
    "agreement.differs": lambda: of(
        info=[f"{HEAD} INFO Rank {rank}: {7 + rank} Net devices" for rank in (0, 1)]
    ),
    "plugin.other": lambda: of(asked(require_plugin="IBext")),
    # The run goes on without the file: it counts even where none is expected.
    "topology-file.not_opened": lambda: of(
        info=[f"{HEAD} INFO Could not open XML topology file /opt/topo.xml : No such file"]
    ),
    "topology-file.not_set": lambda: judge(
        [line.replace("NCCL_TOPO_FILE", "NCCL_DEBUG") for line in HEALTHY],
        asked(topology_file="/opt/topo.xml"),
    ),
    "hcas.other": lambda: of(asked(hcas=["mlx5_9"])),
    "transport.other_edge": lambda: of(network="AWS Libfabric"),
    "gdrdma.missing": lambda: of(gdr=False),
    "rails.wrong_count": lambda: lacking("NET/IB/7/"),
    "sharp.fallback": lambda: of(SHARP, info=[f"{HEAD} WARN Cannot initialize CollNet, using p2p"]),
    "mnnvl.net_inside_domain": lambda: in_rack(devices=4),
    "busbw.below_floor": lambda: of(peak=359.0),
    "stability.dip": lambda: healthy("390.00", "200.00", only="2147483648     536870912"),
    "warnings.known_failure": lambda: of(
        info=[f"{HEAD} WARN NET/IB: Got completion from peer 10.0.0.5<53908> with status=12"]
    ),
}
UNKNOWN: dict[str, Case] = {
    "job.unknown": lambda: ended(None),
    "source.empty": lambda: lacking(""),
    "collective.no_table": lambda: lacking(""),
    "ranks.no_device_list": lambda: lacking("#  Rank"),
    "completeness.no_table": lambda: lacking(""),
    "correctness.not_compared": lambda: of(wrong="N/A"),
    "nccl-version.not_printed": lambda: lacking("NCCL version", want=asked(min_nccl="2.20")),
    "plugin.not_printed": lambda: lacking("NCCL", want=asked(require_plugin="IBext")),
    "topology-file.not_printed": lambda: lacking("NCCL", want=asked(topology_file="/opt/x.xml")),
    "hcas.not_printed": lambda: lacking("NET/IB : Using"),
    "transport.no_evidence": lambda: lacking("NCCL"),
    "gdrdma.no_edge": lambda: lacking("via NET"),
    "rails.no_edge": lambda: lacking("via NET"),
    # A loaded plugin proves nothing.
    "sharp.no_evidence": lambda: of(SHARP),
    "mnnvl.no_evidence": lambda: in_rack(info=[]),
    "busbw.small_messages": lambda: of(low=2**20, high=2**26),
    "stability.no_table": lambda: lacking(""),
    "agreement.other_library": lambda: healthy("library=22807", "library=22902"),
    "warnings.disturbed": lambda: judge(Made().lines_with(f"{HEAD} WARN of a new kind", "table"), WANT),
}


def test_every_gate_has_a_case_that_it_fails_and_one_that_leaves_it_unknown() -> None:
    missing = without_case((*GATES, warnings), FAILS, UNKNOWN, {})
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("code", FAILS)
def test_a_gate_fails_its_case_and_so_does_the_log(code: str) -> None:
    verdict = FAILS[code]()
    check = verdict.check(code.partition(".")[0])
    assert (check.status, check.code, verdict.verdict) == ("fail", code, "fail")


@pytest.mark.parametrize("code", UNKNOWN)
def test_a_gate_without_its_evidence_is_unknown_and_the_log_does_not_pass(code: str) -> None:
    verdict = UNKNOWN[code]()
    check = verdict.check(code.partition(".")[0])
    assert (check.status, check.code, verdict.passed) == ("unknown", code, False)


@pytest.mark.parametrize(
    "line",
    [
        f"{HEAD} INFO NET/IB : Using [{{i}}]mlx5_{{i}}:1/IB [RO]; OOB eth0:10.0.0.1<0>",
        f"{HEAD} INFO Channel 00/0 : 3[3] -> 9[1] [send] via NET/IB{{i}}/3/GDRDMA",
        f"{HEAD} INFO comm 0x1 rank 3 nranks {{i}} cudaDev 3 - Init START",
        f"{HEAD} INFO NCCL_TOPO_FILE set by environment to /opt/{{i}}.xml",
        f"{HEAD} INFO NCCL_X{{i}} set by environment to 1",
    ],
)
def test_a_log_with_more_texts_than_are_kept_does_not_pass(line: str) -> None:
    made = Made()
    made.info += [line.format(i=i) for i in range(1100)]
    assert judge(made.lines(), asked()).check("source").code == "source.lists_too_long"


# The reason of these names what was expected and what was found.
STATED = {
    "job.failed", "collective.missing", "correctness.wrong_values", "plugin.other", "topology-file.not_set",
    "transport.other_edge",
}  # fmt: skip


@pytest.mark.parametrize("code", sorted(FAILS.keys() - STATED))
def test_a_failure_says_what_to_run_next(code: str) -> None:
    check, known = first_cause(FAILS[code]())
    assert known is not None or (check is not None and check.fix)
