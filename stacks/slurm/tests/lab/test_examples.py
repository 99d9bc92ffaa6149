"""The examples as they are on the lab's hosts: CPUs, the training image's packages, two ranks per node."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.capabilities import parts
from lab.hosts.nspawn import SHARED, SHARED_MOUNT
from lab.paths import cache, tools
from stacks.slurm.tests.lab.conftest import LOGIN, SLURM, Site
from tests.support.lab import PROJECT, eventually

pytestmark = pytest.mark.drill

HOME = f"{SHARED_MOUNT}/training"
PROGRAMS = PROJECT / "stacks" / "training" / "examples"
JOB_SECONDS = 420
# As an environment on the home has its own Python: this one sees what the image has.
PYTHON = f"""\
#!/bin/sh
exec unshare --mount sh -euc '
for path in /dev /proc /sys /tmp /etc/hosts {SHARED_MOUNT}; do mount --rbind "$path" "{HOME}/tree$path"; done
exec chroot {HOME}/tree /usr/bin/python3 "$@"' python "$@"
"""


def packages() -> Path:
    """The package tree of the training image, made where it is missing."""
    [archive] = [each for part in parts().values() for each in part.archives if each.name == "torch"]
    [image] = archive.images(cache() / "images" / "work", tools())
    assert image.tree
    return image.tree


@pytest.fixture(scope="module", autouse=True)
def home() -> Iterator[Path]:
    """A folder that all hosts share, with Python, the programs and the scripts."""
    folder = SHARED / "training"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["cp", "-a", "--reflink=auto", packages(), folder / "tree"], check=True, timeout=300)
    (folder / "tree" / SHARED_MOUNT.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (folder / "tree/etc/hosts").touch()
    for file in (*PROGRAMS.glob("*.py"), *(SLURM / "examples").glob("*.sbatch")):
        shutil.copy2(file, folder)
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("script", "program", "options"),
    [
        ("ddp.sbatch", "train.py", "--gpus-per-node=2"),
        ("deepspeed.sbatch", "deepspeed_train.py", "--gpus-per-node=2 --ntasks-per-node=2"),
    ],
)
def test_a_second_job_trains_on_from_the_checkpoint_of_the_first(
    site: Site, home: Path, script: str, program: str, options: str
) -> None:
    def trained(steps: int) -> str:
        log = home / f"{program}-{steps}.log"
        words = (
            f"sbatch --parsable --chdir={HOME} --output={HOME}/{log.name} {options}"
            f" --export=ALL,PYTHON={HOME}/python,OMP_NUM_THREADS=1"
            f" {HOME}/{script} {HOME}/{program} {HOME}/run-{program} {steps}"
        )
        number = site.slurm(words, LOGIN).strip()
        try:
            eventually(
                lambda: site.job(number) not in ("PENDING", "RUNNING", ""), JOB_SECONDS, f"{script} has ended"
            )
        finally:
            site.slurm(f"scancel {number}")
        text = log.read_text()
        print(text)
        assert site.job(number) == "COMPLETED", text
        return text

    site.wait_idle()
    assert "step 40 of 40, 4 ranks: loss" in trained(40)
    text = trained(60)
    assert "resumed after step 40 with 4 ranks" in text and "step 60 of 60, 4 ranks: loss" in text
