"""A cluster that busbar did not make, as the stack that its Nodes describe."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from busbar.config.cluster import HostsFrom
from busbar.config.stackfile import OF_LIST, StackFile, host_list, read_file
from busbar.exits import Misuse
from busbar.fabric.measure import Request, plan, read_facts

if TYPE_CHECKING:
    from busbar.kube.client import RestApi

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
    found = plan(free, Request(validation=validation), "accept", None)
    job, server = found.job, urlsplit(api.server).hostname or "cluster"
    name = re.sub(r"[^a-z0-9]+", "-", server.lower()).strip("-")[:40] or "cluster"
    of_pool: dict[str, Any] = {
        "gpus": job.gpus_per_node,
        "rails": job.rails or 1,
        "rate_gbps": job.rate_gbps or 1,
    }
    if job.gpu:
        of_pool["gpu_model"] = job.gpu
    known = {name: {"name": name, "address": name, "host_key": NO_KEY} for name in job.nodes}
    if hosts:
        listed = host_list(read_file(HostsFrom(file=str(hosts)), project), str(hosts)).hosts
        known = {each.name: each.model_dump(exclude_none=True, exclude=OF_LIST) for each in listed}
    if unlisted := [node for node in job.nodes if node not in known]:
        raise Misuse(
            f"{hosts}: Nodes are missing: {', '.join(unlisted[:8])}. Fix: name the hosts as the Nodes"
        )
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
