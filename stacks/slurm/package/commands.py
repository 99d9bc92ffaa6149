"""The configuration of stacks/slurm for check-config, and the steps of its updates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.cli.ending import when_interrupted
from busbar.cli.engine import PREVIOUS_RESULT, compact, engine_command, stop_on_sigterm
from busbar.cli.output import progress

if TYPE_CHECKING:
    from busbar.config import Finding
    from stacks.slurm.package.config import Slurm
    from stacks.slurm.package.measure import MeasureSpec
    from stacks.slurm.package.preflight import Spec


def describe(path: Path) -> tuple[list[str], list[Finding]]:
    """A stack file in a few lines, and the warnings on it. Raises ConfigError."""
    from busbar.config.checks import measurement_warnings
    from stacks.slurm.package import config

    slurm, _ = config.read(path)
    return [*_describe(slurm)], measurement_warnings(slurm)


def _describe(slurm: Slurm) -> Iterator[str]:
    """The configuration in a few lines."""
    from stacks.slurm.package import render

    login = ", ".join(host.name for host in slurm.hosts.login) or "none"
    yield f"cluster {slurm.name}: controller {slurm.hosts.controller.name}, login {login}"
    for name, pool in slurm.pools.items():
        hosts = slurm.workers_of(name)
        yield (
            f"pool {name}: {len(hosts)} compute hosts, {render.gres(slurm, hosts[0])}, {pool.rails} rails of "
            f"{pool.rate_gbps:g} Gb/s, measured in partition {slurm.partition_of(name)}"
        )
    partitions = (f"{name} ({', '.join(each.pools)})" for name, each in slurm.partitions_or_default.items())
    yield f"partitions: {', '.join(partitions)}; topology: {render.topology_plugin(slurm) or 'none'}"
    accounting = "slurmdbd and MariaDB" if slurm.accounting.enabled else "none"
    yield f"packages: {slurm.packages}; accounting: {accounting}"
    yield "measured: " + (", ".join(slurm.validation.collectives) if slurm.validation.enabled else "nothing")


@engine_command("slurm preflight", "stacks.slurm.package.preflight:Spec", on_cluster=False)
def preflight(spec: Spec) -> str:
    """Check all hosts in parallel; the spec is JSON on stdin, the previous result in the environment.

    Prints what was found. Exit code 0: all hosts are ready; 1: findings; 64: no spec on stdin.
    """
    import asyncio

    from busbar.cli.before import end_preflight, previous_result
    from busbar.preflight import facts
    from stacks.slurm.package.preflight import survey

    previous = previous_result()
    outcome = asyncio.run(survey(spec, previous))
    end_preflight(spec, outcome, previous)
    return facts.pack(outcome.records)


@engine_command("slurm collect", "stacks.slurm.package.measure:MeasureSpec", on_cluster=False)
def collect(spec: MeasureSpec) -> str:
    """Measure a pool by a job of Slurm and judge its log; the request is JSON on stdin.

    Prints the verdict in short as JSON (outputs.contract.summarize). Exit code 0 for any verdict; 1 where
    no bastion can be used, 64 for a key that cannot be used. Log, verdict and report are kept in `folder`.
    A log that is there is judged again where the environment has the previous result.
    """
    import os

    from busbar.fabric.slurm import keep
    from busbar.judge.archive import SOURCE
    from busbar.kube.wait import SystemClock
    from stacks.slurm.package.measure import collect as run

    if not os.environ.get(PREVIOUS_RESULT):
        # A job is named by its request only: this log is of a cluster, pool or validation that is gone.
        (Path(spec.folder) / SOURCE).unlink(missing_ok=True)
    stop_on_sigterm()
    with when_interrupted("; the job is cancelled"):
        return compact(keep(run(spec, SystemClock(), progress), Path(spec.folder), progress))
