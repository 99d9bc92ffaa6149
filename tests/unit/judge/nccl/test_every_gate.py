"""Every gate has a log that it fails and, where it can be, one that leaves it unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from busbar.judge.nccl import Expectation, JobOutcome, Verdict, judge
from busbar.judge.nccl.checks import GATES
from busbar.judge.nccl.checks.codes import Code
from tests.support.gates import without_case
from tests.unit.judge.nccl.logs import Made, rack, without

WANT = Expectation(profile="h100-ib-8x400", nodes=2)
SHARP = Expectation(profile="h100-sharp", nodes=2)
RACK = Expectation(profile="gb200-nvl72", nodes=18)
HEAD = "worker-1:40:90 [3] NCCL"


def of(want: Expectation = WANT, **changes: Any) -> Verdict:
    """On a healthy log, printed with these changes."""
    made = Made()
    for name, value in changes.items():
        setattr(made, name, value)
    return judge(made.lines(), want)


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


def hang() -> Verdict:
    lines = Made().lines()
    last_rank = max(i for i, line in enumerate(lines) if line.startswith("#  Rank"))
    return judge(lines[: last_rank + 1], WANT)


def dip() -> Verdict:
    lines = Made().lines()
    row = next(i for i, line in enumerate(lines) if line.lstrip().startswith("2147483648"))
    lines[row] = lines[row].replace("390.00", "200.00")
    return judge(lines, WANT)


Case = Callable[[], Verdict]

FAILS: dict[Code, Case] = {
    Code.JOB_FAILED: lambda: ended(False),
    Code.SOURCE_ENDS_AFTER_DEVICE_LIST: hang,
    Code.COLLECTIVE_MISSING: lambda: of(asked(collectives=["all_reduce", "all_gather"])),
    Code.RANKS_OTHER_FACTOR: lambda: of(ranks=8),
    Code.RANKS_WRONG_NODES: lambda: of(asked(nodes=3)),
    Code.RANKS_OTHER_GPU: lambda: of(gpu="NVIDIA A100-SXM4-80GB"),
    Code.COMPLETENESS_OTHER_SIZES: lambda: lacking("  1073741824  "),
    Code.CORRECTNESS_WRONG_VALUES: lambda: of(wrong="3"),
    Code.NCCL_VERSION_DIFFERS: lambda: of(info=[f"{HEAD} INFO NCCL version 2.19.3+cuda12.2"]),
    Code.PLUGIN_OTHER: lambda: of(asked(require_plugin="IBext")),
    # The run goes on without the file: it counts even where none is expected.
    Code.TOPOLOGY_FILE_NOT_OPENED: lambda: of(
        info=[f"{HEAD} INFO Could not open XML topology file /opt/topo.xml : No such file"]
    ),
    Code.HCAS_OTHER: lambda: of(asked(hcas=["mlx5_9"])),
    Code.TRANSPORT_OTHER_EDGE: lambda: of(network="AWS Libfabric"),
    Code.GDRDMA_MISSING: lambda: of(gdr=False),
    Code.RAILS_WRONG_COUNT: lambda: lacking("NET/IB/7/"),
    Code.SHARP_FALLBACK: lambda: of(SHARP, info=[f"{HEAD} WARN Cannot initialize CollNet, using p2p"]),
    Code.MNNVL_NET_INSIDE_DOMAIN: lambda: in_rack(devices=4),
    Code.BUSBW_BELOW_FLOOR: lambda: of(peak=359.0),
    Code.STABILITY_DIP: dip,
    Code.WARNINGS_KNOWN_FAILURE: lambda: of(
        info=[f"{HEAD} WARN NET/IB: Got completion from peer 10.0.0.5<53908> with status=12"]
    ),
}
UNKNOWN: dict[Code, Case] = {
    Code.JOB_UNKNOWN: lambda: ended(None),
    Code.SOURCE_EMPTY: lambda: lacking(""),
    Code.COLLECTIVE_NO_TABLE: lambda: lacking(""),
    Code.RANKS_NO_DEVICE_LIST: lambda: lacking("#  Rank"),
    Code.COMPLETENESS_NO_TABLE: lambda: lacking(""),
    Code.CORRECTNESS_NOT_COMPARED: lambda: of(wrong="N/A"),
    Code.NCCL_VERSION_NOT_PRINTED: lambda: lacking("NCCL version", want=asked(min_nccl="2.20")),
    Code.PLUGIN_NOT_PRINTED: lambda: lacking("NCCL", want=asked(require_plugin="IBext")),
    Code.TOPOLOGY_FILE_NOT_PRINTED: lambda: lacking("NCCL", want=asked(require_topology_file=True)),
    Code.HCAS_NOT_PRINTED: lambda: lacking("NET/IB : Using"),
    Code.TRANSPORT_NO_EVIDENCE: lambda: lacking("NCCL"),
    Code.GDRDMA_NO_EDGE: lambda: lacking("via NET"),
    Code.RAILS_NO_EDGE: lambda: lacking("via NET"),
    # A loaded plugin proves nothing.
    Code.SHARP_NO_EVIDENCE: lambda: of(SHARP),
    Code.MNNVL_NO_EVIDENCE: lambda: in_rack(info=[]),
    Code.BUSBW_SMALL_MESSAGES: lambda: of(low=2**20, high=2**26),
    Code.STABILITY_NO_TABLE: lambda: lacking(""),
    Code.WARNINGS_UNKNOWN_KIND: lambda: of(info=["agent: rank 3 was killed"]),
}


def test_every_gate_has_a_case_that_it_fails_and_one_that_leaves_it_unknown() -> None:
    missing = without_case(GATES, FAILS, UNKNOWN, {})
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("code", FAILS)
def test_a_gate_fails_its_case_and_so_does_the_log(code: Code) -> None:
    verdict = FAILS[code]()
    check = verdict.check(code.gate)
    assert (check.status, check.code, verdict.verdict) == ("fail", code, "fail")


@pytest.mark.parametrize("code", UNKNOWN)
def test_a_gate_without_its_evidence_is_unknown_and_the_log_does_not_pass(code: Code) -> None:
    verdict = UNKNOWN[code]()
    check = verdict.check(code.gate)
    assert (check.status, check.code, verdict.passed) == ("unknown", code, False)


def flooded(line: str, want: Expectation, made: Made) -> Verdict:
    """On a log in which the text of LINE comes in more forms than any list keeps."""
    made.info += [line.format(i=i) for i in range(1100)]
    return judge(made.lines(), want)


@pytest.mark.parametrize(
    ("gate", "line", "want"),
    [
        (
            "hcas",
            f"{HEAD} INFO NET/IB : Using [{{i}}]mlx5_{{i}}:1/IB [RO]; OOB eth0:10.0.0.1<0>",
            {"rails": None},
        ),
        ("gdrdma", f"{HEAD} INFO Channel 00/0 : 3[3] -> 9[1] [send] via NET/IB{{i}}/3/GDRDMA", {}),
        ("ranks", f"{HEAD} INFO comm 0x1 rank 3 nranks {{i}} cudaDev 3 - Init START", {}),
        ("topology-file", f"{HEAD} INFO NCCL_TOPO_FILE set by environment to /opt/{{i}}.xml", {}),
        ("busbw", f"{HEAD} INFO NCCL_X{{i}} set by environment to 1", {}),
    ],
)
def test_a_gate_does_not_pass_on_a_list_that_lost_something(
    gate: str, line: str, want: dict[str, Any]
) -> None:
    made = Made()
    assert judge(made.lines(), asked(**want)).check(gate).status != "fail"
    check = flooded(line, asked(**want), made).check(gate)
    assert check.status != "pass"
    if gate == "busbw":
        assert check.code == Code.BUSBW_EVIDENCE_LOST
