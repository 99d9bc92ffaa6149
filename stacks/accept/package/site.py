"""The facts of a stack that criteria and rows need, and the stack of a cluster that busbar did not make."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from busbar.collect.spec import expectation
from busbar.config import Cluster
from busbar.config.cluster import HostsFrom, Validation
from busbar.config.stackfile import OF_LIST, StackFile, host_list, read_file
from busbar.exits import Misuse
from busbar.fabric.diagnosis.kubernetes import scope_of
from busbar.fabric.diagnosis.stages import expected_of
from busbar.fabric.localise import Kind
from busbar.fabric.measure import Request, plan, read_facts
from busbar.hosts.inventory import Inventory
from busbar.judge.nccl import Expectation
from busbar.kube.client import RestApi
from busbar.manifests import nccljob
from busbar.models import OutputModel
from busbar.preflight.spec import HostRequirements, requirements_key, spec_of

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
# The expectation of a log has these besides, by its job.
_OF_JOBS = ("nodes", "hosts", "collectives")


class Pool(OutputModel):
    """One pool."""

    workers: tuple[str, ...]
    """Those that are accepted: all that are not in quarantine."""
    quarantined: dict[str, str]
    """Worker -> the reason."""
    required: HostRequirements
    expectation: dict[str, Any]
    """The stack's expectation of every log of the pool (busbar.judge.nccl.Expectation)."""
    rail_groups: dict[str, str] = Field(default={})
    """Worker -> topology.rail_group, where the stack has one."""
    group_gbps: dict[Kind, float] = Field(default={})
    """Runs on one node, on a pair, and on one rail of a pair -> expected busbw, where it is known."""
    soak_hours: float = 0.0
    """Length of the soak; 0 without one."""

    @field_validator("expectation")
    @classmethod
    def _is_an_expectation(cls, value: dict[str, Any]) -> dict[str, Any]:
        Expectation.model_validate({**value, "collectives": [*COLLECTIVES]})
        # Criteria name these.
        return {**Expectation().model_dump(include={"transport", "tolerance", "accept_warnings"}), **value}

    @cached_property
    def expected_gbps(self) -> dict[str, float | None]:
        """Collective -> expected busbw; None: no expectation exists, as over TCP."""
        return {each: self._expected(each) for each in COLLECTIVES}

    def _expected(self, collective: str, **more: Any) -> float | None:
        given = {**self.expectation, "nodes": len(self.workers) or None, "collectives": COLLECTIVES, **more}
        found = Expectation.model_validate(given).bounds(collective).expected
        return None if found is None else round(found, 3)

    def origin(self, collective: str) -> str:
        """The origin of the expected busbw."""
        profile = self.expectation.get("profile")
        base = f"profile {profile}" if profile else "GPUs and rails of the pool"
        usual = self._expected(collective, expected_by_collective={})
        if collective in self.expectation.get("expected_by_collective", {}):
            says = f", {f'the {base} says' if profile else f'the {base} give'} {usual:g}" if usual else ""
            return f"set by the stack{says}"
        return base if usual else "none exists, as over TCP"


class Site(OutputModel):
    """A stack."""

    stack: str
    cluster: str
    pools: dict[str, Pool] = Field(max_length=200)

    @classmethod
    def of(cls, stack: str, cluster: Cluster, soak_hours: float = 0.0, **known: int) -> Site:
        """The facts of a stack from its configuration. KNOWN: requirements in place of its own."""
        inventory, requirements = Inventory.of(cluster), spec_of(cluster).requirements
        groups = {host.name: host.topology.rail_group for host in cluster.hosts.workers}
        pools: dict[str, Pool] = {}
        for name in cluster.pools:
            validation = validation_of(cluster.validation_of(name))
            workers = [host.name for host in inventory.usable_of(name)]
            file = validation.topology_file
            topology = nccljob.TopologyFile(name, Path(file).name, "") if file else None
            job = nccljob.resolve(cluster, name, workers, validation=validation, topology=topology)
            wanted, over_tcp = expectation(validation, job, name), validation.required_transport == "socket"
            gbps = expected_of(scope_of(inventory, name, workers, Path()))
            required = requirements[requirements_key("worker", name)]
            pools[name] = Pool(
                workers=tuple(workers),
                quarantined={each: inventory.quarantine[each] for each in inventory.unusable_of(name)},
                # Another release may install otherwise, and accepts the same hardware.
                required=required.model_copy(update={"plan": "", **known}),
                expectation={key: value for key, value in wanted.items() if key not in _OF_JOBS},
                # TCP does not use the rails.
                group_gbps={kind: gbps[kind] for kind in gbps if not (over_tcp and kind.startswith("rail_"))},
                rail_groups={each: group for each in workers if (group := groups[each])},
                soak_hours=soak_hours,
            )
        return cls(stack=stack, cluster=cluster.name, pools=pools)


def validation_of(validation: Validation, runs: Sequence[str] = COLLECTIVES, **env: str) -> Validation:
    """The validation of a pool for a job of accept."""
    expected, first = validation.expected_busbw_gbps, validation.collectives[0]
    # The first collective of the stack, whose value this is, need not be the first one here.
    by_name = {**({first: expected} if expected else {}), **validation.expected_by_collective}
    of_job = {"collectives": [*runs], "env": {**validation.env, **env}, "expected_busbw_gbps": None}
    return validation.model_copy(update={**of_job, "expected_by_collective": by_name})


POOL = "gpus"
# No host has this key, so no login can succeed.
NO_KEY = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(32)).decode()


def describe(
    api: RestApi, validation: Mapping[str, Any], project: Path, hosts: Path | None = None
) -> StackFile:
    """The stack file of a cluster. VALIDATION: as in a stack file. HOSTS: a list of hosts, with its workers.

    Raises CannotMeasure, ApiError, ConfigError for a list that is not valid, and Misuse.
    """
    facts = read_facts(api, None)
    # Pods hold GPUs at some times only, as those of a run that is continued.
    free = replace(facts, nodes=tuple(replace(each, held={}) for each in facts.nodes))
    found = plan(free, Request(validation=validation, project=project), "accept")
    job, server = found.job, urlsplit(api.server).hostname or "cluster"
    name = re.sub(r"[^a-z0-9]+", "-", server.lower()).strip("-")[:40] or "cluster"
    about = {"gpus": job.gpus_per_node, "rails": job.rails or 1, "rate_gbps": job.rate_gbps or 1}
    of_pool = {**about, **({"gpu_model": job.gpu} if job.gpu else {})}
    known = {name: {"name": name, "address": name, "host_key": NO_KEY} for name in job.nodes}
    if hosts:
        listed = host_list(read_file(HostsFrom(file=str(hosts)), project), str(hosts)).hosts
        known = {each.name: each.model_dump(exclude_none=True, exclude=OF_LIST) for each in listed}
    if unlisted := [node for node in job.nodes if node not in known]:
        raise Misuse(f"{hosts}: Nodes are missing: {', '.join(unlisted[:8])}. Fix: name hosts as the Nodes")
    workers = [{**known[node], "pool": POOL} for node in job.nodes]
    [(resource, _)] = [*job.hca_resources.items()] or [("nvidia.com/hostdev", 0)]
    data = {
        "name": name,
        "ssh": {"agent": True},
        "api_endpoint": {"address": server},
        "hosts": {"servers": [{"name": "api", "address": server, "host_key": NO_KEY}], "workers": workers},
        "pools": {POOL: {**of_pool, "taints": [taint.model_dump() for taint in job.taints]}},
        "k3s": {"sha256": {"amd64": "0" * 64}},
        "gpu_operator": {"enabled": False},
        "network_operator": {"enabled": False, "resource": resource},
        "mpi_operator": {"enabled": False},
        "validation": found.validation.model_dump(mode="json", exclude_unset=True),
    }
    return StackFile(project / f"Pulumi.{name}.yaml", data, frozenset())
