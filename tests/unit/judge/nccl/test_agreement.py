"""Each printed fact equals its partner, or the log fails by the gate on agreement."""

from __future__ import annotations

import pytest

from busbar.judge.nccl import Expectation, judge
from tests.unit.judge.nccl.logs import Made

HEAD = "worker-0:40:90 [0] NCCL INFO "


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
    made = Made()
    made.info = [HEAD + line]
    check = judge(made.lines(), Expectation(profile="h100-ib-8x400", nodes=2)).check("agreement")
    assert check.code == code


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("+ mpirun -np 16 -H a,b /opt/all_reduce_perf -b 8 -n 20", "agreement.as_expected"),
        ("+ mpirun -np 32 -H a,b /opt/all_reduce_perf -b 8 -n 20", "agreement.other_ranks"),
        ("+ srun --ntasks=8 all_reduce_perf -g 1", "agreement.other_ranks"),
    ],
)
def test_as_many_ranks_take_part_as_the_command_asked_for(command: str, code: str) -> None:
    verdict = judge([command, *Made().lines()], Expectation(profile="h100-ib-8x400", nodes=2))
    assert verdict.check("agreement").code == code
