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
        # No resolver knows the names of the nodes, which are those of the stack file.
        "scontrol": """case "$*" in
            "show hostnames gpu-[1-2]") printf "gpu-1\\ngpu-2\\n" ;;
            "--oneliner show node gpu-"*) echo "NodeName=$4 Arch=x86_64 NodeAddr=10.0.0.1${4#gpu-} Port=0" ;;
        esac""",
        "getent": '[[ $2 == 10.0.0.12 ]] && echo "10.0.0.12 STREAM 10.0.0.12"',
        "ip": '[[ $4 == 10.0.0.12 ]] && echo "10.0.0.12 dev eno1 src 10.0.0.11 uid 0"',
    }
    programs(folder, commands)
    env = {"PATH": f"{folder}:{os.environ['PATH']}", **more}
    return subprocess.run(
        ["bash", FOLDER / name, *words], env=env, text=True, capture_output=True, timeout=30, check=False
    )


# srun runs the command of each node.
ON_EACH = """\
while [[ $1 == --* ]]; do echo "$1"; shift; done
for number in 0 1; do SLURM_NODEID=$number "$@"; done"""


def test_torchrun_gets_the_size_of_the_job_and_meets_on_its_first_node_alone(tmp_path: Path) -> None:
    programs(tmp_path, {"python3": 'printf "%s\n" "$@"'})
    done = run(tmp_path, "ddp.sbatch", "train.py", "/home/me/run 1", srun=ON_EACH, **JOB)
    words = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert words[:4] == ["--kill-on-bad-exit=1", "--cpu-bind=none", "-m", "torch.distributed.run"]
    asked = {"--nnodes=2", "--nproc-per-node=8", "--rdzv-endpoint=10.0.0.11:21234", "--rdzv-id=31234.0"}
    assert asked < {*words} and words[-2:] == ["train.py", "/home/me/run 1"]
    of_nodes = [word for word in words if word.startswith(("--rdzv-conf", "--local-addr"))]
    first, other = of_nodes[:2], of_nodes[2:]
    assert first == ["--rdzv-conf=is_host=1", "--local-addr=10.0.0.11"]
    assert other == ["--rdzv-conf=is_host=0", "--local-addr=10.0.0.12"]


def test_the_first_rank_is_met_at_the_address_of_its_node(tmp_path: Path) -> None:
    show = 'echo "$MASTER_ADDR:$MASTER_PORT"'
    assert run(tmp_path, "deepspeed.sbatch", "x.py", srun=show, **JOB).stdout == "10.0.0.11:21234\n"


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
