"""The outputs of a cluster that was measured, as other stacks read them."""

from collections.abc import Mapping
from typing import Any

from busbar.config import load
from busbar.outputs import build_outputs
from busbar.outputs.contract import summarize
from tests.support.clusters import H100_POOL, site
from tests.support.verdicts import passing


def outputs(
    verdict: dict[str, Any] | None = None,
    pool: dict[str, Any] | None = None,
    machines: Mapping[str, str] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """The outputs of a site of two H100 workers; `pool` and `sections` change its configuration.

    `machines`: worker -> digest of its machine-id, where that is not the usual one.
    """

    def facts(name: str) -> dict[str, Any]:
        return {"gpus": 8, "rails": 8, "machine": (machines or {}).get(name, f"machine-{name}")}

    cluster = site(**sections)
    cluster["pools"] = {name: {**H100_POOL, **(pool or {})} for name in cluster["pools"]}
    return build_outputs(
        load(cluster),
        versions={"k3s": "v1.35.6+k3s1"},
        facts={worker["name"]: facts(worker["name"]) for worker in cluster["hosts"]["workers"]},
        results={name: summarize(verdict or passing()) for name in cluster["pools"]},
    )
