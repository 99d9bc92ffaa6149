"""The sbatch scripts of the examples, with commands of Slurm that print what they were given."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.bash import programs

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = ("ddp.sbatch", "deepspeed.sbatch")
JOB = {
    "SLURM_JOB_ID": "31234",
    "SLURM_JOB_NODELIST": "gpu-[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_GPUS_ON_NODE": "8",
    "HOME": "/home/me",
}


def run(
    folder: Path, name: str, *words: str, srun: str = 'printf "%s\\n" "$@"', **more: str
) -> subprocess.CompletedProcess[str]:
    commands = {
        "srun": srun,
        "scontrol": 'echo "gpu-1\ngpu-2"',
        "getent": '[[ $2 == gpu-2 ]] && echo "10.0.0.12 STREAM gpu-2"',
        "ip": '[[ $4 == 10.0.0.12 ]] && echo "10.0.0.12 dev eno1 src 10.0.0.11 uid 0"',
    }
    programs(folder, commands)
    env = {"PATH": f"{folder}:{os.environ['PATH']}", **more}
    return subprocess.run(
        ["bash", FOLDER / name, *words], env=env, text=True, capture_output=True, timeout=30, check=False
    )


def test_torchrun_gets_the_size_of_the_job_and_a_meeting_point_on_its_first_node(tmp_path: Path) -> None:
    done = run(tmp_path, "ddp.sbatch", "train.py", "/home/me/run 1", **JOB)
    words = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert words[:3] == ["--kill-on-bad-exit=1", "--cpu-bind=none", "python3"]
    assert {"--nnodes=2", "--nproc-per-node=8", "--rdzv-endpoint=gpu-1:21234", "--rdzv-id=31234.0"} < {*words}
    assert words[-2:] == ["train.py", "/home/me/run 1"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_ranks_meet_over_the_interface_to_another_node_or_the_one_set(tmp_path: Path, name: str) -> None:
    show = 'echo "$NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME"'
    assert run(tmp_path, name, "x.py", srun=show, **JOB).stdout == "eno1 eno1\n"
    assert run(tmp_path, name, "x.py", srun=show, NCCL_SOCKET_IFNAME="ib0", **JOB).stdout == "ib0 ib0\n"


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_image_is_an_option_of_srun_and_not_of_sbatch(tmp_path: Path, name: str) -> None:
    done = run(tmp_path, name, "x.py", IMAGE="/images/torch.sqsh", **JOB)
    assert "--container-image=/images/torch.sqsh" in done.stdout.splitlines()
    assert "container" not in "".join(_directives(name))


@pytest.mark.parametrize("name", SCRIPTS)
def test_without_a_job_or_a_program_the_script_says_how_to_use_it(tmp_path: Path, name: str) -> None:
    for done in (run(tmp_path, name, "x.py"), run(tmp_path, name, **JOB)):
        assert done.returncode == 64 and f"sbatch --partition=NAME {name} PROGRAM.py" in done.stderr


def _directives(name: str) -> list[str]:
    lines = (FOLDER / name).read_text().splitlines()
    return [shlex.split(line)[1] for line in lines if line.startswith("#SBATCH ")]
