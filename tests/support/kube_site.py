"""A site of four H100 workers to render for, in which each test changes what it is about."""

from typing import Any

from busbar.config import Cluster, load
from busbar.manifests.nccljob import NcclJob, resolve
from tests.support.clusters import H100_POOL, site

WORKERS = 4


def cluster(pool: dict[str, Any] | None = None, **parts: Any) -> Cluster:
    """The site; `pool` is laid over its pool, `parts` replace its sections."""
    made = site(servers=1, workers={"h100": WORKERS}, **parts)
    made["pools"] = {"h100": {**H100_POOL, **(pool or {})}}
    made["k3s"] = {"sha256": {"amd64": "ab" * 32}, **parts.get("k3s", {})}
    return load(made)


def job(pool: dict[str, Any] | None = None, nodes: int = WORKERS, **parts: Any) -> NcclJob:
    """The measurement of the first `nodes` workers of that site."""
    return resolve(cluster(pool, **parts), "h100", [f"worker-{number}" for number in range(1, nodes + 1)])
