"""Configurations of stacks/watch, and a cluster that has passed, as it reads it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from busbar.config import load
from busbar.kube.client import ApiError, JsonObject
from busbar.outputs import ClusterOutputs, build_outputs
from busbar.outputs.contract import summarize
from stacks.watch.package import config
from stacks.watch.package.config import Watch
from stacks.watch.package.series import Sample, SeriesSpec, render
from tests.support.clusters import H100_POOL, site
from tests.support.kube_cluster import Cluster
from tests.support.verdicts import passing

CLUSTER = "organization/busbar/site"
MEASURED_AT = "2026-11-24T05:00:00Z"


def outputs(verdict: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """The outputs of a site of two H100 workers; `sections` change its configuration."""
    result = summarize(verdict or passing(), config_map="nccl/nccl-h100-result-1")
    rails = [f"mlx5_{number}" for number in range(8)]
    return build_outputs(
        load({**site(**sections), "pools": {"h100": dict(H100_POOL)}}),
        versions={"k3s": "v1.35.6+k3s1"},
        facts={f"gpu-{number}": {"gpus": 8, "rails": rails} for number in (1, 2)},
        results={"h100": {**result, "measured_at": MEASURED_AT}},
    )


def cluster(verdict: dict[str, Any] | None = None) -> ClusterOutputs:
    return ClusterOutputs.from_dict(outputs(verdict))


def configured(**values: Any) -> dict[str, Any]:
    return {"cluster": CLUSTER, **values}


def watch(**values: Any) -> Watch:
    return config.load(configured(**values))


def samples(**config: Any) -> list[Sample]:
    """The series of the cluster, beside a node that is drained and one in quarantine."""
    held = {
        node: Sample(f"busbar_node_{state}", {"node": node, "reason": "cable"}, 1)
        for node, state in (("gpu-8", "drained"), ("gpu-9", "quarantined"))
    }
    spec = SeriesSpec.of(cluster(), watch(**config))
    return list(render(spec, held, {"h100": 360.0}, datetime(2026, 11, 24, tzinfo=UTC)))


EXISTING = {"mode": "existing", "release_label": "prometheus"}
INSTALL = {"mode": "install"}


class Served(Cluster):
    """A cluster in memory whose proxies answer with `texts`, by path, or refuse with an error."""

    def __init__(self, objects: dict[str, Any]) -> None:
        super().__init__(objects)
        self.texts: dict[str, str | ApiError] = {}
        self.queries: dict[str, Any] = {}

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
        answer = self.texts.get(path, ApiError(f"GET {path}", 503, "connect: connection refused"))
        if isinstance(answer, ApiError):
            raise answer
        return iter([answer.encode()])

    def get(self, path: str, **query: str) -> JsonObject:
        return self.queries[query["query"]] if "query" in query else super().get(path, **query)
