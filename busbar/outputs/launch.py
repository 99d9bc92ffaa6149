"""What a pod needs on the workers of a pool to run as the validation did, for whoever starts jobs there.

One text for all pools (a JSON object), because Pulumi prints every leaf of an output on a line of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from busbar.config import Cluster
from busbar.config.pools import Taint
from busbar.hosts.host import Host
from busbar.hosts.inventory import Inventory
from busbar.manifests import nccljob

# Of the validation itself: a job has its own number of ranks, and its own way to print evidence.
_OF_THE_VALIDATION = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_RUNTIME_CONNECT", "NCCL_TOPO_FILE")


class PoolLaunch(BaseModel):
    """One pool: its workers, and the settings under which its bandwidth was measured.

    `resources` are the extended resources of a pod that uses a whole worker, without its GPUs. `env` are the
    NCCL settings of profile and configuration. `topology_file` names the NCCL topology file that the
    validation used; its content is not an output. `topology`: the keys of the labels by which its Nodes say
    where they are in the fabric, the farthest level first; None where the site has named none. `interfaces`:
    for each rail, in the order of PCI addresses, the names of its network interface on the workers: one where
    all agree. None where they are not known of all workers. `roce`: what the workers do with the congestion
    of RoCE rails, each state once; None where preflight does not judge it. `without_nfs`: workers on which
    preflight found no NFS client.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    workers: tuple[str, ...] = Field(min_length=1)
    gpus: int = Field(ge=1)
    rails: int = Field(ge=1)
    rate_gbps: float
    link_layer: str
    transport: str
    profile: str | None = None
    gpu_model: str | None = None
    resources: dict[str, str] = Field(default_factory=dict)
    host_paths: dict[str, str] = Field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    runtime_class: str = ""
    shm_size: str
    memory: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    topology_file: str | None = None
    topology: tuple[str, ...] | None = None
    interfaces: tuple[tuple[str, ...], ...] | None = None
    roce: tuple[str, ...] | None = None
    without_nfs: tuple[str, ...] | None = None


_POOLS = TypeAdapter(dict[str, PoolLaunch])


def format_pools(inventory: Inventory, facts: Mapping[str, Mapping[str, Any]]) -> str:
    """The settings of every pool as one text; `facts` of preflight by host.

    Raises as busbar.manifests.nccljob.resolve does.
    """
    cluster = inventory.cluster
    pools = {
        name: _launch(cluster, name, inventory.workers_of(name), facts)
        for name in cluster.pools
        if inventory.workers_of(name)
    }
    texts = {name: launch.model_dump(mode="json", exclude_none=True) for name, launch in pools.items()}
    return json.dumps(texts, sort_keys=True)


def parse_pools(text: Any) -> dict[str, PoolLaunch]:
    """The settings of every pool, from a text of `format_pools`. Raises ValueError for any other text."""
    try:
        return _POOLS.validate_json(text if isinstance(text, str) else "")
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"{where + ': ' if where else ''}{problem['msg']}") from None


def _launch(
    cluster: Cluster, pool: str, workers: Sequence[Host], facts: Mapping[str, Mapping[str, Any]]
) -> PoolLaunch:
    job = nccljob.resolve(cluster, pool, [worker.name for worker in workers])
    configured = cluster.pools[pool]
    # All workers of a pool have the same levels.
    levels = tuple(key for key, _ in workers[0].labels)
    return PoolLaunch(
        workers=job.nodes,
        gpus=configured.gpus,
        rails=configured.rails,
        rate_gbps=configured.rate_gbps,
        link_layer=configured.link_layer,
        transport=job.transport,
        profile=cluster.validation.profile,
        gpu_model=configured.gpu_model,
        resources={**{name: str(n) for name, n in job.hca_resources.items()}, **job.extra_resources},
        host_paths=dict(job.host_paths),
        taints=job.taints,
        runtime_class=job.runtime_class,
        shm_size=job.shm_size,
        memory=job.memory,
        # An algorithm that only all_reduce has would fail the other collectives of a job.
        env={
            name: value
            for name, value in job.env.items()
            if _is_setting(name) and name not in job.all_reduce_env
        },
        topology_file=cluster.validation.topology_file,
        topology=levels or None,
        interfaces=_interfaces([facts.get(worker.name, {}).get("rail_interfaces") for worker in workers]),
        roce=tuple(
            sorted({state for worker in workers for state in facts.get(worker.name, {}).get("roce", ())})
        )
        or None,
        without_nfs=tuple(
            worker.name for worker in workers if facts.get(worker.name, {}).get("nfs_client") is False
        )
        or None,
    )


def _interfaces(found: Sequence[Sequence[str] | None]) -> tuple[tuple[str, ...], ...] | None:
    known = [names for names in found if names]
    if len(known) != len(found) or len({len(names) for names in known}) != 1:
        return None
    return tuple(tuple(sorted(set(names))) for names in zip(*known, strict=True))


def _is_setting(name: str) -> bool:
    return not name.startswith("OMPI_") and name not in _OF_THE_VALIDATION
