"""A cluster that has passed, as stacks/training reads it, and configurations for it."""

from __future__ import annotations

from typing import Any

from busbar.config import load
from busbar.outputs import ClusterOutputs, build_outputs
from busbar.outputs.pool import summarize
from stacks.training.package import config
from stacks.training.package.config import Training
from tests.support.clusters import H100_POOL, site
from tests.support.verdicts import passing

CLUSTER = "organization/busbar/site"


def outputs(
    verdict: dict[str, Any] | None = None, pool: dict[str, Any] | None = None, **sections: Any
) -> dict[str, Any]:
    """The outputs of a site of two H100 workers; `pool` and `sections` change its configuration."""
    cluster = site(**sections)
    cluster["pools"] = {name: {**H100_POOL, **(pool or {})} for name in cluster["pools"]}
    return build_outputs(
        load(cluster),
        versions={"k3s": "v1.35.6+k3s1"},
        facts={worker["name"]: {"gpus": 8, "rails": 8} for worker in cluster["hosts"]["workers"]},
        results={name: summarize(verdict or passing()) for name in cluster["pools"]},
    )


def cluster(verdict: dict[str, Any] | None = None, **change: Any) -> ClusterOutputs:
    """The same, read; `change` replaces fields."""
    read = ClusterOutputs.from_dict(outputs(verdict))
    return ClusterOutputs.model_validate({**read.model_dump(), **change})


def curve(**gbps: float) -> dict[str, Any]:
    """A pass whose all_reduce was measured at these sizes: curve(B1024=1.5)."""
    verdict = passing()
    [result] = verdict["collectives"].values()
    rows = []
    for name, busbw in gbps.items():
        half = {**result["curve"][0]["in_place"], "busbw_gbps": busbw}
        rows.append(
            {**result["curve"][0], "size_bytes": int(name[1:]), "in_place": half, "out_of_place": half}
        )
    return {**verdict, "collectives": {"all_reduce": {**result, "curve": rows}}}


def configured(**values: Any) -> dict[str, Any]:
    """The object `busbar-training:training`."""
    return {"cluster": CLUSTER, **values}


def training(**values: Any) -> Training:
    """The same, loaded."""
    return config.load(configured(**values))
