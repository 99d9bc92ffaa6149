"""enroot and pyxis from the folder in BUSBAR_LAB_PYXIS: .deb files for Debian 13, with what they need.

Images in it (.sqsh) are started, with `cat`.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.hosts.nspawn import SHARED, SHARED_MOUNT
from stacks.slurm.tests.lab.conftest import CONTROLLER, HOSTS, Change, Site, unmeasured

PACKAGES = os.environ.get("BUSBAR_LAB_PYXIS", "")
pytestmark = [
    pytest.mark.drill(needs="packages of enroot and pyxis"),
    pytest.mark.skipif(not PACKAGES, reason="BUSBAR_LAB_PYXIS names no folder with enroot and pyxis"),
]

NAMES = ("enroot", "nvslurm-plugin-pyxis")


def with_packages(folder: str, hosts: int = 3) -> Change:
    def change(slurm: dict[str, Any]) -> None:
        unmeasured(slurm)
        slurm["container_packages"] = folder
        slurm["users"] = {"accounts": {"ada": {"uid": 5001}}}
        slurm["hosts"]["compute"] = slurm["hosts"]["compute"][:hosts]

    return change


@pytest.fixture
def folder() -> Iterator[str]:
    """The packages where all hosts see them."""
    copied = SHARED / "pyxis"
    shutil.copytree(Path(PACKAGES), copied)
    yield f"{SHARED_MOUNT}/pyxis"
    shutil.rmtree(copied)


def installed(site: Site, host: str) -> list[str]:
    """Which of the packages a host has."""
    found = site.lab.ssh(
        host, f"dpkg-query -W -f '${{Package}} ${{db:Status-Status}}\\n' {' '.join(NAMES)} || true"
    )
    return [line.split()[0] for line in found.splitlines() if line.endswith(" installed")]


def test_srun_starts_containers_on_every_host_and_a_wrong_folder_is_refused(site: Site, folder: str) -> None:
    site.wait_idle()
    code, text = site.up(with_packages(f"{SHARED_MOUNT}/nothing"))
    assert code != 0, text
    assert f"has no enroot*.deb and nvslurm-plugin-pyxis*.deb in {SHARED_MOUNT}/nothing" in text, text
    assert not any(installed(site, host) for host in HOSTS), "no changes made"

    code, text = site.up(with_packages(folder))
    assert code == 0, text
    for host in HOSTS:
        assert installed(site, host) == [*NAMES], host
        assert "--container-image" in site.slurm("srun --help", host)
    assert site.slurm("srun --nodes=3 --ntasks-per-node=1 sh -c '[ -d /run/pyxis ] && hostname'").split()
    for image in Path(PACKAGES).glob("*.sqsh"):
        started = f"srun --nodes=1 --container-image={folder}/{image.name} cat /etc/os-release"
        assert "NAME=" in site.slurm(started)
        assert "NAME=" in site.slurm(f"runuser -u ada -- {started}")

    code, text = site.up(with_packages(folder, hosts=2))
    assert code == 0, text
    assert installed(site, "compute-3") == [], "removed with the host"

    code, text = site.up(unmeasured)
    assert code == 0, text
    assert "--container-image" not in site.slurm("srun --help", CONTROLLER)
