"""The sbatch script, run by a real bash in place of Slurm's.

srun, mpirun and nccl-tests are small replacements in PATH: srun runs one rank, the program prints a made log.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from busbar.config import Validation, section
from busbar.config.cluster import Gpus
from busbar.judge.collector import Recording
from busbar.judge.nccl import Expectation, Verdict, judge
from busbar.judge.nccl.expected import profiles
from busbar.manifests import mpijob
from busbar.manifests.nccljob import NcclJob, nccl_job
from busbar.manifests.sbatch import script, segment_size
from tests.support import bash
from tests.support.kube_site import job
from tests.unit.judge.nccl.logs import Made, rack

FIRST = "h100-ib-8x400"
# Of these another part of the script differs: algorithm, transport, network, NVLink domain.
OTHERS = ("a100-sharp", "a40", "efa", "gb200-nvl72")

# What `srun --mpi=list` printed: Slurm 24.11.5 of Debian 13, an older one, one without PMI.
PMIX = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v5"
PMI2 = "srun: MPI types are...\nsrun: none\nsrun: pmi2"
NONE = "MPI plugin types are...\n\tnone\n\tcray_shasta"

SRUN = r"""#!/bin/bash
case $1 in
  --mpi=list) echo "$MPI_LIST" >&2; exit ;;
  --help) echo "  --mpi=type  $PYXIS"; exit ;;
esac
[[ $1 != "--mpi=$BROKEN" ]] || { echo "srun: error: Invalid MPI type" >&2; exit 1; }
{ printf 'srun'; printf ' <%s>' "${@:1:8}"; } >"$LOG.started"
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
MPIRUN = r"""#!/bin/bash
if [[ $1 == --version ]]; then echo "mpirun (Open MPI) 5.0.7"; exit; fi
{ printf 'mpirun'; printf ' <%s>' "${@:1:6}"; } >"$LOG.started"
while [[ $1 != bash ]]; do shift; done
exec "$@"
"""
PROGRAM = r"""#!/bin/bash
printf '# arguments'; printf ' <%s>' "$@"; echo
echo "# NCCL_ALGO ${NCCL_ALGO:-none} on ${NCCL_SOCKET_IFNAME:-any} ${OMPI_MCA_btl_tcp_if_include:-any}"
cat "$LOG"
exit "${CODE:-0}"
"""


def job_of(name: str, nodes: int = 2, gpus: int | None = None) -> NcclJob:
    """The measurement by a profile on so many nodes, all as the profile says."""
    validation = section(Validation, "validation", {"profile": name, "image": "x/y:1"})
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    return nccl_job(name, names, Gpus(gpus=gpus or profiles.load(name).gpus_per_node), validation)


def printed(name: str, nodes: int = 2, image: str | None = None, gpus: int | None = None) -> str:
    return script(job_of(name, nodes, gpus), profiles.load(name), image)


def of_profile(name: str) -> str:
    return printed(name, profiles.load(name).workers)


@pytest.mark.parametrize("name", profiles.names())
def test_a_script_asks_for_what_its_profile_says_and_sets_it(name: str) -> None:
    text, profile = of_profile(name), profiles.load(name)
    asked = dict(re.findall(r"^#SBATCH --(\S+)=(\S+)$", text, re.MULTILINE))
    assert asked["nodes"] == str(profile.workers)
    assert asked["ntasks-per-node"] == asked["gpus-per-node"] == str(profile.gpus_per_node)
    exported = dict(re.findall(r"^export ([^=]+)=(.+)$", text, re.MULTILINE))
    assert exported["NCCL_DEBUG_SUBSYS"].startswith(profile.env["NCCL_DEBUG_SUBSYS"]), "and of SHARP TUNING"
    wanted = {**profile.env, "NCCL_DEBUG_SUBSYS": exported["NCCL_DEBUG_SUBSYS"]}
    assert {key: shlex.quote(value) for key, value in wanted.items()}.items() <= exported.items()
    [mpirun] = [line for line in text.splitlines() if line.startswith("MPI_ARGS=(")]
    words = [re.sub("^-(?=[a-z])", "--", word) for word in profile.mpi_args]
    assert shlex.join(words) in mpirun


@pytest.mark.parametrize(
    ("name", "image"),
    [*((name, None) for name in (FIRST, *OTHERS)), ("a100-ib-8x200-gdrcopy", "/images/nccl tests.sqsh")],
)
def test_bash_and_shellcheck_find_nothing_wrong(name: str, image: str | None, tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text(printed(name, 18, image))
    subprocess.run(["bash", "-n", path], check=True, timeout=60)
    shellcheck = Path(sys.executable).with_name("shellcheck")  # of the environment, which need not be on PATH
    done = subprocess.run([shellcheck, "--severity=style", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    texts = {"srun": SRUN, "mpirun": MPIRUN, "all_reduce_perf": PROGRAM, "all_gather_perf": PROGRAM}
    bash.programs(tmp_path, texts)
    made(tmp_path, Made())
    return tmp_path


def made(folder: Path, log: Made) -> None:
    (folder / "made.log").write_text("\n".join([*log.lines(), ""]))


def run(text: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """What the batch host does: one output, the variables of the job."""
    given = {
        "PATH": f"{folder}:{os.environ['PATH']}", "LOG": str(folder / "made.log"), "MPI_LIST": PMIX,
        "PYXIS": "--container-image", "BROKEN": "", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", **env,
    }  # fmt: skip
    return subprocess.run(
        ["/bin/bash", "-c", text], env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=120,
    )  # fmt: skip


def lines(done: subprocess.CompletedProcess[str], start: str) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith(start)]


def started(folder: Path) -> str:
    """What started the ranks, with its arguments."""
    return (folder / "made.log.started").read_text()


def verdict_on(log: str, **expected: Any) -> Verdict:
    return judge([line.encode() for line in log.splitlines(keepends=True)], Expectation(**expected))


def test_the_log_of_a_healthy_job_passes_and_is_whole(slurm: Path, tmp_path: Path) -> None:
    done = run(of_profile(FIRST), slurm)
    assert done.returncode == 0, done.stdout
    verdict = verdict_on(done.stdout, profile=FIRST, nodes=2)
    assert (verdict.verdict, verdict.busbw_gbps) == ("pass", 390.0), verdict.reasons
    with open(tmp_path / "log.zst", "wb") as sink:
        recording = Recording(sink, print, lambda line: None)
        list(recording.tee(line.encode() for line in done.stdout.splitlines(keepends=True)))
    assert (recording.missing, recording.counted, recording.errors) == ([], True, [])


def test_the_log_of_a_rack_passes(slurm: Path) -> None:
    rack(log := Made())
    made(slurm, log)
    done = run(of_profile("gb200-nvl72"), slurm)
    verdict = verdict_on(done.stdout, profile="gb200-nvl72", nodes=18)
    assert verdict.verdict == "pass", verdict.reasons


def test_a_program_that_fails_fails_the_job_and_its_log_says_so(slurm: Path) -> None:
    done = run(of_profile(FIRST), slurm, CODE="3")
    assert done.returncode == 3
    assert lines(done, "# busbar: all_reduce ended") == ["# busbar: all_reduce ended with exit code 3"]
    assert done.stdout.splitlines()[-1] == "# busbar: launcher ends with exit code 3"


@pytest.mark.parametrize(
    ("env", "starts"),
    [
        ({}, "srun <--mpi=pmix> <--kill-on-bad-exit=1> <--cpu-bind=none> <bash>"),
        ({"MPI_LIST": PMI2}, "srun <--mpi=pmi2> <--kill-on-bad-exit=1> <--cpu-bind=none> <bash>"),
        ({"MPI_LIST": NONE}, "mpirun <--output> <tag> <-np> <16> <--bind-to> <none>"),
        # More nodes by an option of sbatch are more ranks.
        ({"MPI_LIST": NONE, "SLURM_JOB_NUM_NODES": "5"}, "mpirun <--output> <tag> <-np> <40> "),
        # Slurm 22.05 of Debian 12 lists pmix also without libpmix: "Invalid MPI type 'pmix'".
        ({"BROKEN": "pmix"}, "srun <--mpi=pmi2> "),
    ],
)
def test_ranks_start_by_pmix_else_pmi2_else_mpirun(slurm: Path, env: dict[str, str], starts: str) -> None:
    done = run(of_profile(FIRST), slurm, **env)
    assert done.returncode == 0, done.stdout
    assert started(slurm).startswith(starts)


# A row has what is missing on the batch host, the image, the environment, the exit code, and the message.
STOPPED: list[tuple[str, str | None, dict[str, str], int, str]] = [
    ("", None, {"SLURM_JOB_ID": ""}, 64, "error: this script runs in a Slurm job. Fix: sbatch"),
    ("", "X.sqsh", {"PYXIS": ""}, 64,
     "pyxis is not installed here. Fix: install enroot and pyxis on all nodes, or"),
    ("", "X.sqsh", {"MPI_LIST": NONE}, 64,
     "# busbar: no working srun --mpi=pmix or pmi2 for an image. Fix:"),
    ("all_reduce_perf", None, {}, 127, "no program all_reduce_perf on PATH or in /opt/nccl_tests/build"),
    ("mpirun", None, {"MPI_LIST": NONE}, 127, "no working srun --mpi=pmix or pmi2, and no mpirun. Fix:"),
]  # fmt: skip


@pytest.mark.parametrize(("missing", "image", "env", "code", "said"), STOPPED)
def test_what_stops_the_script_has_one_message(
    slurm: Path, missing: str, image: str | None, env: dict[str, str], code: int, said: str
) -> None:
    if missing:
        (slurm / missing).unlink()
    for name in ("bash", "env", "timeout", "tr", "tee", "wc", "mktemp", "sleep", "cat", "rm", "sed", "seq"):
        (slurm / name).symlink_to(Path("/usr/bin") / name)
    done = run(printed(FIRST, image=image), slurm, PATH=str(slurm), **env)
    assert done.returncode == code, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if said in line]
    assert code == 127 or lines(done, "# busbar: measuring") == []
    assert "Fix: " in done.stdout[done.stdout.index(line) :]


def test_the_sizes_are_those_of_the_mpijob(slurm: Path) -> None:
    (line,) = lines(run(of_profile(FIRST), slurm), "# arguments")
    sizes = "<-b> <536870912> <-e> <8589934592> <-f> <2> <-n> <20> <-w> <5> <-c> <1> <-g> <1>"
    assert line == f"# arguments {sizes}"
    assert re.sub("[<>]", "", sizes) in str(mpijob.render(job_of(FIRST)))


def test_the_image_is_an_argument_of_srun_and_never_of_the_script(slurm: Path) -> None:
    text = printed("a100-ib-8x200-gdrcopy", image="/images/a b.sqsh")
    assert not any("container" in line for line in text.splitlines() if line.startswith("#SBATCH"))
    assert run(text, slurm).returncode == 0
    assert "<--container-image=/images/a b.sqsh> <--container-mounts=/dev/gdrdrv>" in started(slurm)


def test_an_interface_of_ones_own_is_kept(slurm: Path) -> None:
    (line,) = lines(run(of_profile(FIRST), slurm, NCCL_SOCKET_IFNAME="bond0"), "# NCCL_ALGO")
    assert line == "# NCCL_ALGO RING on bond0 any"


def test_the_algorithm_of_all_reduce_is_not_forced_on_other_collectives(slurm: Path) -> None:
    both = job(validation={"collectives": ["all_gather", "all_reduce"], "algorithm": "tree"})
    done = run(script(both, profiles.load(FIRST)), slurm)
    assert [line.split()[2] for line in lines(done, "# NCCL_ALGO")] == ["none", "TREE"]


@pytest.mark.parametrize(
    ("nodes", "domain", "segment"),
    [(8, 1, None), (18, 18, 18), (32, 18, 16), (36, 18, 18), (4, 18, 4), (2, 18, 2), (19, 18, None)],
)
def test_segments_fit_a_rack_and_divide_the_nodes(nodes: int, domain: int, segment: int | None) -> None:
    assert segment_size(nodes, domain) == segment


def test_a_job_gets_its_deadline_and_the_gpus_of_its_nodes_and_without_a_profile_no_segment() -> None:
    for seconds, minutes in ((60, 1), (61, 2), (1800, 30)):
        text = script(job(validation={"deadline_seconds": seconds}), None)
        assert f"#SBATCH --time={minutes}\n" in text and "--segment" not in text
    assert "#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n" in printed(FIRST, gpus=4)


# As the published manifests ask for them (`source` of each profile), without their cpu.
LIMITS: dict[str, dict[str, Any]] = {
    "a100-noib": {"memory": "1000Gi"},
    "efa": {"vpc.amazonaws.com/efa": 32, "memory": "32000Mi", "hugepages-2Mi": "5120Mi"},
    "gb200-nvl72": {"nvidia.com/gpu": 4, "memory": "900Gi", "rdma/ib": 1},
    "h100-crusoe": {"memory": "120000Mi", "nvidia.com/hostdev": 8},
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_worker_asks_for_what_the_manifest_of_its_profile_asks_for(name: str) -> None:
    manifest = mpijob.render(job_of(name))
    pod = manifest["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8, **LIMITS[name]}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}} in pod["volumes"]
