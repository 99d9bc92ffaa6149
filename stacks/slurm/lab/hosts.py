"""Boots the Slurm hosts. They need the engine, and nothing that `make up` builds for K3s."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab import everything, up
from lab.topology import Host
from stacks.slurm.lab.base import BASE
from stacks.slurm.lab.topology import HOSTS


def boot(hosts: Sequence[Host] = HOSTS) -> None:
    """Boot those that are off, until they answer ssh; builds what is missing first. Raises LabError."""
    up.boot(hosts, _build)


def _build() -> Path:
    everything.engine()
    return BASE.ensure()
