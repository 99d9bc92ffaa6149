"""The verdict on a pool that stays while its GPUs are held (`validation.when_busy: keep`).

Each update records the result of a pool with the settings of its measurement in a ConfigMap of the cluster.
The collector of a later measurement prints that record where it cannot measure.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from busbar.manifests.names import short
from busbar.manifests.nccljob import NcclJob
from busbar.outputs.again import judged_again
from busbar.outputs.pool import FORMAT, read_result
from busbar.text import listed

Settings = Mapping[str, str]
"""Under which a pool is measured, by name: versions, `run`, image, sizes, environment, expectation."""

_JOB = "job"
_SETTINGS = "settings"
# Fields of the job that name or place it, and fields of the expectation that follow from the Nodes.
_NOT_SETTINGS = {"pool", "nodes", "namespace", "versions", "env", "topology", "taints", "hosts"}


def settings_of(job: NcclJob, name: str, expectation: Mapping[str, Any]) -> Settings:
    """The settings of a measurement. NAME: of its MPIJob. EXPECTATION: that of its collector."""
    fields = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    found = {key: value for key, value in {**expectation, **fields}.items() if key not in _NOT_SETTINGS}
    found |= {"taints": [taint.model_dump() for taint in job.taints], _JOB: name}
    found |= {f"env {key}": value for key, value in job.env.items()}
    found |= {"topology": short(job.topology.sha256)} if job.topology else {}
    return {**job.versions, **{key: _text(value) for key, value in found.items() if value is not None}}


def current_result(
    printed: str | None,
    spec: Mapping[str, Any],
    settings: Settings,
    nodes: Sequence[str],
    *,
    keep: bool,
    announce: Callable[[str], None],
) -> dict[str, Any]:
    """The result of a pool whose collector printed PRINTED, with the Nodes that were measured.

    SETTINGS and NODES are those of the measurement that is wanted now: a result that was kept says how they
    differ from its own. SPEC, KEEP and ANNOUNCE: as of `judged_again`.
    """
    former = _kept_settings(printed)
    if former is None:
        result = judged_again(printed, spec, keep=keep, announce=announce)
        has_evidence = result.get("busbw_gbps") is not None
        return {**result, "nodes_measured": list(nodes)} if has_evidence else result
    # Its log is of another measurement than that of SPEC: it is not judged again.
    result = read_result(printed)
    return {**result, "stale": list(_changes(former, settings, result.get("nodes_measured") or (), nodes))}


def record(printed: str | None, result: Mapping[str, Any], settings: Settings) -> str:
    """What the ConfigMap of a pool gets, and a collector prints to keep it: RESULT of `current_result`."""
    # The ConfigMap in the cluster goes with its job.
    kept = {key: value for key, value in result.items() if key not in ("stale", "config_map")}
    own = _kept_settings(printed) or settings
    return json.dumps({"format": FORMAT, **kept, _SETTINGS: dict(own)}, sort_keys=True, separators=(",", ":"))


def _kept_settings(printed: str | None) -> Settings | None:
    """The settings of the measurement of a result that was kept; None for any other text."""
    try:
        found = json.loads(printed or "")[_SETTINGS]
    except (KeyError, TypeError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _changes(
    former: Settings, wanted: Settings, measured: Collection[str], nodes: Collection[str]
) -> list[str]:
    changed = [key for key in {**wanted, **former} if former.get(key) != wanted.get(key)]
    texts = {key: f"{key} {former.get(key) or 'none'} -> {wanted.get(key) or 'none'}" for key in changed}
    for text, names in (
        ("not measured", [node for node in nodes if node not in measured]),
        ("no longer in the pool", [node for node in measured if node not in nodes]),
    ):
        if names:
            texts[text] = f"{text}: {listed(names)}"
    # The job's name depends on all others: it tells only of what has none.
    return [text for key, text in texts.items() if key != _JOB] or list(texts.values())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
