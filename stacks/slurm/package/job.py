"""The job that measures a pool, and its expectation: those of the core, for Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from busbar.collect.spec import expectation
from busbar.manifests import sbatch
from busbar.manifests.names import job_name
from busbar.manifests.ncclrun import nccl_run
from busbar.outputs.contract import machines_of
from stacks.slurm.package.config import Slurm
from stacks.slurm.package.preflight import hosts_of
from stacks.slurm.package.render import hostname


def measure_spec(
    slurm: Slurm, pool: str, facts: Mapping[str, Mapping[str, Any]], folder: str, *, again: str = ""
) -> dict[str, Any]:
    """The spec of `busbar slurm collect` (stacks.slurm.package.measure) without the login, as plain JSON.

    `facts`: host -> the facts that preflight found; a host that is not responding may have none. `folder`:
    folder of log, verdict and report. `again`: any new text, to measure again.
    """
    validation = slurm.validation_of(pool)
    hosts = [host for host in hosts_of(slurm) if host.pool == pool and host.name not in slurm.quarantine]
    names = [host.name for host in hosts]
    run = nccl_run(pool, names, slurm.pools[pool], validation)
    known = (facts[name] for name in names if name in facts)
    versions = sorted({f"slurm {found['slurm']}, driver {found.get('driver')}" for found in known})
    content = {
        **sbatch.request(run, validation.system, validation.image),
        "versions": versions,
        "machines": machines_of(names, facts),
    }
    name = job_name(pool, {**content, **({"again": again} if again else {})})
    return {
        "controller": hosts_of(slurm)[0].data(),
        "hosts": [host.data() for host in hosts],
        "hostnames": {name: hostname(facts, name) for name in names},
        "partition": slurm.partition_of(pool),
        "job": name,
        "run": asdict(run),
        "image": validation.image,
        "folder": folder,
        "deadline_seconds": run.deadline_seconds,
        "pending_seconds": slurm.validation.pending_seconds,
        "min_nodes_fraction": slurm.validation.min_nodes_fraction,
        "expectation": expectation(validation, run, name),
    }
