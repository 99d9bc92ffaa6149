"""The CPU simulators of nccl-tests, run by a real mpirun on this machine, and read by busbar's own judge."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from busbar.judge.nccl import Expectation, judge
from lab.images import sandbox
from lab.images.programs import NCCL_PROGRAMS
from lab.paths import images

Mpirun = Callable[..., subprocess.CompletedProcess[str]]

REAL_LOG = Path(__file__).resolve().parents[4] / "shared" / "nccl_logs" / "086_h100_1n_8gpu_ring_2_17_9.log"


@pytest.fixture(scope="session")
def mpirun() -> Mpirun:
    """Run a program on `nodes` pretended hosts of `ranks` ranks, with TCP between all of them.

    `prepare`: shell commands before that, in the same file system.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root: the programs run in the image's own Debian, in a chroot")
    work = images() / "work"

    def run(
        command: str, *, nodes: int = 2, ranks: int = 1, settings: str = "", prepare: str = ":"
    ) -> subprocess.CompletedProcess[str]:
        contexts = " : ".join(
            f"-np {ranks} {settings} unshare --uts sh -c 'hostname host-{node}; exec {command}'"
            for node in range(nodes)
        )
        return sandbox.shell(work, f"{prepare}\nmpirun --oversubscribe --mca btl tcp,self {contexts}")

    return run


def rows(log: str) -> list[str]:
    return [line for line in log.splitlines() if re.match(r" *\d+ +\d+ +\w+ ", line)]


def expecting(ranks: int = 1) -> Expectation:
    return Expectation(
        nodes=2, gpus_per_node=ranks, rails=ranks, rate_gbps=400, transport="socket",
        collectives=["all_reduce"], min_bytes=1 << 16, max_bytes=1 << 18, step_factor=2,
        expected_busbw_gbps=0.001,
    )  # fmt: skip


@pytest.mark.parametrize("program", NCCL_PROGRAMS)
def test_each_program_moves_its_data_where_it_belongs(mpirun: Mpirun, program: str) -> None:
    done = mpirun(f"{program} -b 64K -e 256K -f 2 -n 2 -c 2", ranks=2)
    assert done.returncode == 0, done.stderr
    assert "# Out of bounds values : 0 OK" in done.stdout
    in_place = "N/A" if program in ("alltoall_perf", "sendrecv_perf") else "0"
    assert [(line.split()[8], line.split()[12]) for line in rows(done.stdout)] == [("0", in_place)] * 3


def test_the_headings_are_those_of_nccl_tests_to_the_byte(mpirun: Mpirun) -> None:
    if not REAL_LOG.is_file():
        pytest.skip(f"{REAL_LOG.name} of the shared fixtures is missing")
    real = REAL_LOG.read_text().splitlines()
    ours = mpirun("all_reduce_perf -b 8 -e 8 -n 1").stdout.splitlines()
    headings = [line for line in real if "out-of-place" in line or "#wrong" in line or "(GB/s)" in line]
    assert len(headings) == 3
    assert [line for line in ours if line in headings] == headings
    assert ours[-4:] == real[-4:]


def test_the_judge_passes_a_run_over_tcp_that_was_expected_over_tcp(mpirun: Mpirun) -> None:
    done = mpirun(
        "all_reduce_perf -b 64K -e 256K -f 2 -n 3", ranks=2, settings="-x NCCL_DEBUG=INFO --tag-output"
    )
    verdict = judge(done.stdout.splitlines(), expecting(ranks=2))
    assert verdict.passed, verdict.reasons
    assert (verdict.ranks, verdict.nodes, verdict.transport) == (4, 2, "socket")
    assert verdict.simulated


def test_lines_of_a_rank_that_are_forwarded_late_still_stand_before_the_table(mpirun: Mpirun) -> None:
    # As Open MPI's daemon does on a busy host.
    late = """cat >/usr/bin/late <<'END'
#!/bin/sh
[ "$(hostname)" = host-1 ] || exec "$@"
"$@" | while IFS= read -r line; do sleep 0.01; echo "$line"; done
END
chmod +x /usr/bin/late"""
    done = mpirun(
        "late all_reduce_perf -b 64K -e 256K -f 2 -n 3", settings="-x NCCL_DEBUG=INFO", prepare=late
    )
    verdict = judge(done.stdout.splitlines(), expecting())
    assert verdict.passed, verdict.reasons


def test_one_spoilt_element_is_counted_and_fails_the_run(mpirun: Mpirun) -> None:
    done = mpirun("all_reduce_perf -b 64K -e 64K -n 1", settings="-x BUSBAR_LAB_CORRUPT=1")
    assert done.returncode == 7
    assert [line.split()[8] for line in rows(done.stdout)] == ["1"]
    assert "# Out of bounds values : 2 FAILED" in done.stdout
    assert not judge(done.stdout.splitlines(), expecting()).passed


def average_with_limits(mpirun: Mpirun, program: str, chosen: str = "", **limits: str) -> float:
    """GB/s of bus bandwidth between hosts with these HCAs; MB/s, or "" for an HCA without a limit."""
    folder = "/usr/local/lib/busbar-lab/rails"
    prepare = f"mkdir -p {folder}; cd {folder}; mkdir {' '.join(limits)}\n"
    prepare += "".join(f"echo {limit} >{hca}/limit\n" for hca, limit in limits.items() if limit)
    done = mpirun(
        f"{program} -b 256K -e 256K -n 3", settings=f"-x NCCL_IB_HCA={chosen}", prepare=prepare + "cd /"
    )
    assert done.returncode == 0, done.stderr
    [average] = re.findall(r"Avg bus bandwidth    : (\S+)", done.stdout)
    return float(average)


@pytest.mark.parametrize("program", NCCL_PROGRAMS)
def test_between_hosts_the_slowest_rail_decides(mpirun: Mpirun, program: str) -> None:
    assert 0.001 < average_with_limits(mpirun, program, mlx5_1="1", mlx5_3="9") <= 0.002


@pytest.mark.parametrize(("chosen", "rails"), [("=mlx5_1", 1), ("mlx5_1,mlx5_3", 2), ("^mlx5_0", 2)])
def test_rails_are_those_that_nccl_ib_hca_chooses(mpirun: Mpirun, chosen: str, rails: int) -> None:
    found = average_with_limits(mpirun, "all_reduce_perf", chosen, mlx5_0="0.1", mlx5_1="1", mlx5_3="")
    assert 0.0005 * rails < found <= 0.001 * rails
