"""What the Slurm hosts' base is made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab.build.recipe import lines
from lab.hosts.rootfs import BASE as OTHER
from lab.topology import SUBNET
from stacks.slurm.lab.base import BASE, FOLDER


def test_it_is_another_base_than_that_of_make_up(tmp_path: Path) -> None:
    assert BASE.folder() != OTHER.folder()
    (tmp_path / "list").write_text("openmpi-bin\n")
    assert replace(BASE, packages=tmp_path / "list").folder() != BASE.folder()
    assert replace(BASE, inputs=()).folder() != BASE.folder()


def test_slurm_is_offered_and_not_installed() -> None:
    assert not any("slurm" in name for name in lines(FOLDER / "packages.txt"))
    assert {"slurmctld", "slurmdbd", "slurmd", "sackd", "mariadb-server"} <= set(
        lines(FOLDER / "offered.txt")
    )


def test_open_mpi_stays_on_the_network_that_leads_from_host_to_host() -> None:
    assert f"btl_tcp_if_include = {SUBNET}" in lines(FOLDER / "openmpi-mca-params.conf")
