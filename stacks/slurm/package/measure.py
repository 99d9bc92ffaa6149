"""The measurement of a pool over SSH: the stdin of `busbar slurm collect`, and its verdict."""

from __future__ import annotations

from typing import Any

from busbar.fabric import slurm
from busbar.hosts.inventory import Host, Login
from busbar.judge.nccl.expected import profiles
from busbar.kube.wait import Clock, ProgressCallback
from busbar.manifests import sbatch
from busbar.manifests.ncclrun import NcclRun
from stacks.slurm.package.reach import over_ssh


class MeasureSpec(slurm.MeasureSpec):
    """The stdin of `busbar slurm collect`. `hosts`: those of the pool, without those in quarantine.

    `run` and `image`: what the job is asked for. The command makes `script` of them, so that a changed text
    measures nothing again.
    """

    script: str = ""
    run: NcclRun
    image: str | None = None
    login: Login
    controller: Host
    hosts: tuple[Host, ...]


def collect(spec: MeasureSpec, clock: Clock, progress: ProgressCallback) -> dict[str, Any]:
    """The verdict in short with its record (busbar.fabric.slurm.measure).

    Raises ValueError (unusable key) and ScriptError (bastion).
    """
    with over_ssh(spec.login, spec.controller, spec.hosts) as reach:
        return measure(spec, reach, clock, progress)


def measure(
    spec: MeasureSpec, reach: slurm.Reach, clock: Clock, progress: ProgressCallback
) -> dict[str, Any]:
    """`collect` with the hosts to query."""
    nodes, profile = [host.name for host in spec.hosts], spec.expectation["profile"]
    script = sbatch.script(spec.run, profiles.load(profile) if profile else None, spec.image)
    spec = spec.model_copy(update={"script": script})
    return slurm.measure(spec, spec.hosts[0].pool or "", nodes, reach, clock, progress)
