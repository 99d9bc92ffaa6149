"""Reads what 0.1.0 and the development of 0.2.0 have recorded of measurements. The next release drops it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from busbar.collect.spec import settings_of
from busbar.judge.record import Record
from busbar.kube.client import Api, JsonObject
from busbar.kube.objects import find
from busbar.manifests.mpijob import POOL_LABEL, nodes_of
from busbar.manifests.names import digest, short
from busbar.outputs.pool import FORMAT, PoolResult, summarize

KEY = "run.json"
"""In the ConfigMap of a record: its text in the development of 0.2.0, which history.jsonl had too."""
RESULT_KEY = "result.json"
QUARANTINED_KEY = "quarantined"
VERDICT_KEY = "verdict.json"


def read(text: str | None) -> dict[str, Any] | None:
    """A record as `summarize` gives it now; None for another text."""
    try:
        found = json.loads(text or "")
        about = {key: found[key] for key in ("pool", "kind", "settings")}
        return _summary(found["result"], job_uid=found["id"], **about)
    except (KeyError, TypeError, ValueError):
        return None


def last_result(api: Api, namespace: str, name: str) -> tuple[dict[str, Any] | None, set[str]]:
    """The record that the program kept for `when_busy: keep`, and which workers were in quarantine then."""
    data = (find(api, f"/api/v1/namespaces/{namespace}/configmaps/{name}") or {}).get("data") or {}
    held = set(filter(None, (data.get(QUARANTINED_KEY) or "").split(",")))
    try:
        found = json.loads(data[RESULT_KEY])
        settings = found.get("settings") or {}
        return _summary(found, job_uid="", pool="", kind="update", settings=settings), held
    except (AttributeError, KeyError, TypeError, ValueError):
        return None, held


def verdict_of(
    api: Api, namespace: str, job: str, uid: str, expectation: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The verdict on a job under an expectation, from a ConfigMap that goes with the job."""
    content = digest({"uid": uid, "expectation": dict(expectation)})
    found = find(api, f"/api/v1/namespaces/{namespace}/configmaps/{job}-result-{short(content)}") or {}
    try:
        verdict = json.loads(found["data"][VERDICT_KEY])
    except (KeyError, TypeError, ValueError):
        return None
    return verdict if isinstance(verdict, dict) else None


def of_updates(api: Api, namespace: str, jobs: list[JsonObject]) -> Iterator[dict[str, Any]]:
    """From the MPIJobs of updates and the verdicts on them, as 0.1.0 left them."""
    for job in jobs:
        metadata = job["metadata"]
        of_job = f"busbar/job={metadata['name']}"
        maps = api.list(f"/api/v1/namespaces/{namespace}/configmaps", labelSelector=of_job)
        # One per expectation under which its log was judged.
        maps.sort(key=lambda each: each["metadata"].get("creationTimestamp") or "")
        for each in maps[-1:]:
            try:
                verdict = json.loads(each["data"][VERDICT_KEY])
                yield _summary(
                    summarize(verdict, measured_at=metadata["creationTimestamp"]),
                    job_uid=metadata["uid"],
                    pool=metadata["labels"].get(POOL_LABEL, ""),
                    kind="update",
                    settings=dict(settings_of(job, verdict["expectation"])),
                    nodes=nodes_of(job),
                )
            except (KeyError, TypeError, ValueError):
                continue  # not written by busbar


def _summary(result: Mapping[str, Any], *, nodes: Any = None, **about: Any) -> dict[str, Any]:
    found = PoolResult.model_validate(result)
    measured = nodes or found.nodes_measured or ()
    plain = found.model_dump(mode="json", exclude_none=True) | ({"nodes_measured": measured} if nodes else {})
    folder = plain.get("verdict_file", "").rpartition("/")[0]
    record = Record(**about, folder=folder, nodes=measured, measured_at=plain.get("measured_at"))
    return {**plain, "format": FORMAT, "record": record.model_dump(mode="json")}
