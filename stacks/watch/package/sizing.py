"""Estimates, without a measurement, the number of series that Prometheus holds and the memory for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from busbar.outputs import ClusterOutputs
from stacks.watch.package.config import Watch

# Series of a node: node_exporter's default collectors on a host with some 100 cores, kubelet with cAdvisor,
# kube-state-metrics.
NODE_EXPORTER = 1500
KUBERNETES = 1500
# Series of one rail, and of one GPU: those that rules and panels read (render.py) and busbar's own, rounded.
PER_RAIL = 30
PER_GPU = 30
# Bytes of one series in the head block, with its share of queries and of the WAL's replay.
BYTES_PER_SERIES = 8 * 1024
BASE_BYTES = 1 << 30


@dataclass(frozen=True)
class Estimate:
    """`series`: number on all nodes. `memory_gib`: memory that Prometheus should request."""

    nodes: int
    series: int
    memory_gib: int

    def __str__(self) -> str:
        return f"{self.nodes} nodes: about {self.series:,} series, {self.memory_gib} GiB of memory (estimate)"


def _per_node(watch: Watch) -> tuple[int, int]:
    """Series of a node itself, with busbar's expectations of it, and of each of its GPUs."""
    return 5 + (NODE_EXPORTER + KUBERNETES) * watch.stack.enabled, PER_GPU * watch.dcgm


def per_node(watch: Watch) -> str:
    """A sentence about the estimated series per node, GPU and rail."""
    own, per_gpu = _per_node(watch)
    return f"series of a node: {own:,}, and {per_gpu} per GPU, {PER_RAIL} per rail (estimate)"


def estimate(watch: Watch, nodes: int, gpus: int, rails: int) -> Estimate:
    """The estimate for `nodes` with `gpus` and `rails` each; other series in Prometheus do not count."""
    own, per_gpu = _per_node(watch)
    series = nodes * (own + rails * PER_RAIL + gpus * per_gpu)
    return Estimate(nodes, series, math.ceil((BASE_BYTES + series * BYTES_PER_SERIES) / (1 << 30)))


def of_cluster(watch: Watch, cluster: ClusterOutputs) -> Estimate:
    """The estimate for a cluster, as if all its workers had the devices of the largest pool."""
    pools = cluster.pools.values()
    workers = sum(node.role == "worker" for node in cluster.nodes)
    return estimate(
        watch,
        workers,
        max((pool.gpus for pool in pools), default=0),
        max((pool.rails for pool in pools), default=0),
    )
