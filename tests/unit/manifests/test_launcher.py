"""The launcher's script, run by a real bash with a small replacement for Open MPI's mpirun.

What a real mpirun does with these arguments, only the lab shows.
"""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from busbar.judge import COUNT_LINE, FIRST_LINE, LAST_LINE
from busbar.judge.nccl import Expectation, judge
from busbar.judge.nccl.expected import profiles
from busbar.manifests.launcher import HOSTFILE, script
from busbar.manifests.nccljob import NcclJob
from tests.support import bash
from tests.support.kube_site import job

MPIRUN = """#!/bin/bash
if [[ ${1:-} == --version ]]; then echo "mpirun (Open MPI) ${OPEN_MPI:-4.1.4}"; exit; fi
printf 'mpirun'; printf ' <%s>' "${@//$'\\n'/; }"; echo
for word in "$@"; do
  [[ $word == *"${FAILING:-nothing}"* ]] && exit 3
done
while [[ $1 != /bin/bash ]]; do shift; done
OMPI_COMM_WORLD_LOCAL_RANK=0 "$@" && OMPI_COMM_WORLD_LOCAL_RANK=1 "$@"
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    texts = {"mpirun": MPIRUN, **dict.fromkeys(("all_reduce_perf", "all_gather_perf"), "#!/bin/true\n")}
    bash.programs(tmp_path, texts)
    return tmp_path


def run(
    of: NcclJob, programs: Path, hosts: str = "localhost slots=8\n", **env: str
) -> subprocess.CompletedProcess[str]:
    (programs / "hostfile").write_text(hosts)
    # The operator mounts the real one; only its place is another here.
    text = script(of).replace(f"HOSTFILE={HOSTFILE}", f"HOSTFILE={programs / 'hostfile'}")
    return subprocess.run(
        ["/bin/bash", "-c", text], env={"PATH": f"{programs}:{os.environ['PATH']}", **env},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def both(**validation: Any) -> NcclJob:
    return job(validation={"collectives": ["all_reduce", "all_gather"], **validation})


SSH = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
TRIES = "-o ConnectTimeout=10 -o ConnectionAttempts=60"
SIZES = "<-b> <536870912> <-e> <8589934592> <-f> <2> <-n> <20> <-w> <5> <-c> <1> <-g> <1>"
# The validation, the environment, and what mpirun is given and not given.
GIVEN: list[tuple[dict[str, Any], dict[str, str], list[str], list[str]]] = [
    ({}, {}, [" <-np> <32> <--hostfile> ", " <--bind-to> <none> <--map-by> <slot>", "<-x> <NCCL_DEBUG>",
              f"/all_reduce_perf> {SIZES}"], ["OMPI_MCA", "LD_LIBRARY_PATH"]),
    # Options of ssh are one word.
    ({}, {}, [f"<--mca> <plm_rsh_args> <{SSH} {TRIES}> "], []),
    ({}, {"OPEN_MPI": "4.1.4"}, [" <--tag-output> "], []),
    ({}, {"OPEN_MPI": "5.0.7"}, [" <--output> <tag> "], []),
    ({}, {"LD_LIBRARY_PATH": "/usr/local/nccl/lib"}, ["<-x> <LD_LIBRARY_PATH>"], []),
    # Single dashes of a profile become long options.
    ({"profile": "h100-crusoe"}, {},
     [" <--bind-to> <none> <--map-by> <slot> <--mca> <coll_hcoll_enable> <0> "], []),
    # Only all_reduce knows the tree; all collectives know the ring.
    ({"algorithm": "tree"}, {}, ["<NCCL_ALGO>"], []),
    ({"algorithm": "tree", "collectives": ["all_gather"]}, {}, [], ["<NCCL_ALGO>"]),
    ({"algorithm": "ring", "collectives": ["all_gather"]}, {}, ["<NCCL_ALGO>"], []),
]  # fmt: skip


@pytest.mark.parametrize(("validation", "env", "given", "others"), GIVEN)
def test_mpirun_gets_its_ranks_options_and_environment(
    programs: Path, validation: dict[str, Any], env: dict[str, str], given: list[str], others: list[str]
) -> None:
    line = run(job(validation=validation), programs, **env).stdout.splitlines()[2]
    assert [text for text in given if text not in line] == []
    assert [text for text in others if text in line] == []


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("all_gather_perf", "no program all_gather_perf on PATH or in /opt/nccl_tests/build"),
        ("mpirun", "no program mpirun on PATH"),
    ],
)
def test_an_image_without_a_program_says_so_and_what_to_set(programs: Path, missing: str, said: str) -> None:
    (programs / missing).unlink()
    done = run(both(), programs, **({"PATH": str(programs)} if missing == "mpirun" else {}))
    assert done.returncode == 127
    assert said in done.stdout and "validation.image" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{LAST_LINE} 127"


def test_the_first_rank_of_a_host_prints_its_limits(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("busbar.manifests.launcher.NODE_FILE", str(programs / "node"))
    (programs / "node").write_text("gpu-7\n")
    (programs / "all_reduce_perf").write_text("#!/bin/bash\necho rank $OMPI_COMM_WORLD_LOCAL_RANK\n")
    bash = "#!/bin/bash\nulimit -Sn 1024; ulimit -Hn 4096\n"
    (programs / "mpirun").write_text(MPIRUN.replace("#!/bin/bash\n", bash))
    done = run(job(), programs)
    limits = "# busbar: open files on gpu-7: soft 1024, hard 4096"
    assert done.stdout.splitlines()[3:6] == [limits, "rank 0", "rank 1"]
    verdict = judge(done.stdout.splitlines(), Expectation())
    assert verdict.open_files == {"soft 1024, hard 4096": ["gpu-7"]}
    assert [each.evidence for each in verdict.diagnoses if each.name == "few-open-files"] == [limits]


def test_names_that_do_not_resolve_keep_no_mpirun(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("busbar.manifests.launcher.NAMES_SECONDS", 0)
    bash.programs(programs, {"getent": "[[ $2 == localhost ]]"})
    done = run(job(), programs, hosts="localhost slots=8\nworker-1.nowhere slots=8\n")
    assert "# busbar: worker-1.nowhere does not resolve after 0 s" in done.stdout
    assert "mpirun <--allow-run-as-root>" in done.stdout


@pytest.mark.parametrize(("deadline", "names", "measure"), [(60, 30, 45), (180, 90, 165), (1800, 120, 1785)])
def test_waits_for_names_and_collectives_fit_the_deadline(deadline: int, names: int, measure: int) -> None:
    text = script(job(validation={"deadline_seconds": deadline}))
    limits = dict(re.findall(r"^(NAMES|MEASURE)_SECONDS=(\d+)$", text, re.M))
    assert limits == {"NAMES": str(names), "MEASURE": str(measure)}
    assert 'timeout --kill-after=5 "$1"' in text, "also a program that ignores TERM"


def test_a_run_that_hangs_is_ended_by_the_launcher(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("busbar.manifests.launcher.MARGIN_SECONDS", 1799)
    (programs / "mpirun").write_text("#!/bin/bash\n[[ $1 == --version ]] || { echo rows; exec sleep 300; }\n")
    done = run(job(), programs)
    assert "rows" in done.stdout
    assert "# busbar: all_reduce timed out: the limit for all collectives is 1 s" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{LAST_LINE} 124"
    assert done.returncode == 124


def test_a_short_option_of_a_profile_stays_one(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = profiles.load("h100-crusoe").model_copy(update={"mpi_args": ["-x", "LANG", "-bind-to", "none"]})
    monkeypatch.setattr("busbar.config.cluster.profiles.load", lambda _: profile)
    line = run(job(validation={"profile": "h100-crusoe"}), programs).stdout.splitlines()[2]
    assert " <-x> <LANG> <--bind-to> <none> " in line


def test_a_value_with_blanks_and_quotes_cannot_become_a_command(programs: Path) -> None:
    text = script(job(validation={"env": {"NCCL_COMMENT": "'; touch /tmp/owned; '"}}))
    assert "owned" not in text


def counted(stdout: str) -> tuple[int, int]:
    """The lines and bytes that the launcher says it wrote."""
    (found,) = re.findall(rf"^{COUNT_LINE} (\d+) lines, (\d+) bytes$", stdout, re.MULTILINE)
    return int(found[0]), int(found[1])


@pytest.mark.parametrize("code", [0, 3])
def test_a_collective_that_fails_fails_the_job_after_the_next_one_and_all_lines_are_counted(
    programs: Path, code: int
) -> None:
    done = run(both(), programs, FAILING="all_reduce_perf" if code else "nothing")
    lines = done.stdout.splitlines(keepends=True)
    assert (done.returncode, lines[0], lines[-1]) == (code, f"{FIRST_LINE}\n", f"{LAST_LINE} {code}\n")
    said = [line for line in lines if line.startswith(("# busbar: measuring", "# busbar: all_"))]
    assert said == [
        *("# busbar: measuring all_reduce\n", f"# busbar: all_reduce ended with exit code {code}\n"),
        *("# busbar: measuring all_gather\n", "# busbar: all_gather ended with exit code 0\n"),
    ]
    assert lines[-2].startswith(COUNT_LINE)
    assert counted(done.stdout) == (len(lines) - 2, len("".join(lines[:-2]).encode()))


def test_what_a_program_writes_to_stderr_is_counted_and_in_the_log_too(programs: Path) -> None:
    (programs / "mpirun").write_text('#!/bin/bash\n[[ $1 == --version ]] || echo "wärning" >&2\n')
    done = run(job(), programs)
    assert "wärning\n" in done.stdout
    before, _, _ = done.stdout.partition(COUNT_LINE)
    assert counted(done.stdout) == (before.count("\n"), len(before.encode()))


def test_a_burst_of_output_is_passed_on_whole(programs: Path) -> None:
    (programs / "mpirun").write_text("#!/bin/bash\n[[ $1 == --version ]] || seq 1 300000\n")
    done = run(job(), programs)
    assert "\n299999\n300000\n" in done.stdout
    assert counted(done.stdout)[0] == done.stdout.partition(COUNT_LINE)[0].count("\n") > 300_000


def test_the_launcher_ends_before_a_stray_process(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("busbar.manifests.launcher.COUNT_SECONDS", 0)
    (programs / "mpirun").write_text(
        '#!/bin/bash\n[[ $1 == --version ]] && exit\nsleep 300 & echo $! >"${0%/*}/stray"\n'
    )
    started = subprocess.Popen(
        ["/bin/bash", "-c", script(job()).replace(f"HOSTFILE={HOSTFILE}", "HOSTFILE=/dev/null")],
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
    )
    try:
        assert started.wait(120) == 0
    finally:
        os.kill(int((programs / "stray").read_text()), signal.SIGKILL)
    assert started.stdout is not None
    # Without time to count, a busy tee may print the line before it last.
    assert f"{LAST_LINE} 0" in started.stdout.read().decode().splitlines()


def test_an_image_without_the_means_to_count_runs_all_the_same(programs: Path) -> None:
    for name in ("bash", "timeout", "getent"):
        (programs / name).symlink_to(shutil.which(name) or name)
    done = run(job(), programs, PATH=str(programs))
    assert done.returncode == 0
    assert COUNT_LINE not in done.stdout
    assert done.stdout.splitlines()[-1] == f"{LAST_LINE} 0"
