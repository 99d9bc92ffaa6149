"""Each printed fact equals its partner, or the log fails by the gate on agreement."""

from __future__ import annotations

import pytest

from busbar.judge.nccl import Expectation, judge
from busbar.judge.nccl.checks.hosts import agreement
from busbar.judge.nccl.log.evidence import Evidence
from tests.unit.judge.nccl.logs import Made
from tests.unit.judge.nccl.tables import context, printed, said

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
    lines = Made()
    lines.info = [HEAD + line for line in made]
    assert judge(lines.lines(), FUSED).check("agreement").code == code


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
    verdict = judge([command, *Made().lines()], Expectation(profile="h100-ib-8x400", nodes=2))
    assert verdict.check("agreement").code == code
