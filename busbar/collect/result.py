"""The records of measurements in a cluster: a ConfigMap each, with the record and the whole verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from busbar.collect.busy import PATIENCE_SECONDS, WhenBusy
from busbar.judge.archive import JOB, Record
from busbar.judge.nccl.verdict import SCHEMA
from busbar.kube.client import Api, JsonObject
from busbar.kube.nodes import NODES
from busbar.kube.objects import create_or_merge, delete, find
from busbar.manifests.mpijob import POOL_LABEL, nodes_of
from busbar.manifests.names import sha256, short
from busbar.outputs.contract import summarize

LABEL = "busbar/history"
"""Of the ConfigMap of a record: the name of the pool."""
KEY = "verdict.json"
RECORD = "record.json"
RECORDS = 100
"""So many of a pool's updates are kept, the newest, and of its other measurements."""
# A ConfigMap holds 1 MiB; a verdict has some 20 KB, also for 3,520 ranks.
MAX_BYTES = 512 * 1024


class Results:
    """The measurements of a namespace. Methods raise ApiError where the API refuses or does not answer."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"

    def address(self, uid: str) -> str:
        """NAMESPACE/NAME of the record of the job with this uid."""
        return f"{self._namespace}/{_name(uid)}"

    def read(self, uid: str) -> tuple[Record, dict[str, Any]] | None:
        """The record and the verdict of the job with this uid; None without them."""
        found = find(self._api, f"{self._path}/{_name(uid)}")
        return _stored(found) if found else None

    def all(self, pool: str | None = None) -> list[dict[str, Any]]:
        """All measurements, or those of a pool, as `summarize` gives them; the newest first."""
        maps = self._api.list(self._path, labelSelector=f"{LABEL}={pool}" if pool else LABEL)
        found = [*filter(None, map(self._summary, maps))]
        return sorted(found, key=lambda each: each["record"].get("measured_at") or "", reverse=True)

    def of_job(self, name: str, expectation: Mapping[str, Any]) -> dict[str, Any] | None:
        """The newest pass or fail on an MPIJob of this name, which is gone, under this expectation."""
        for found in self.all():
            record = found["record"]
            is_of_it = record["settings"].get(JOB) == name and record["expectation"] == expectation
            if is_of_it and record["complete"] and found["verdict"] != "unknown":
                return found
        return None

    def write(self, record: Record, verdict: Mapping[str, Any]) -> None:
        """Create or replace the record, and delete the oldest of its pool. Raises ValueError for its size."""
        data = {KEY: _text(verdict), RECORD: _text(record.model_dump(mode="json"))}
        if (size := sum(map(len, data.values()))) > MAX_BYTES:
            raise ValueError(f"the verdict has {size} bytes, the limit is {MAX_BYTES}")
        metadata = {
            "name": _name(record.job_uid),
            "labels": {"app.kubernetes.io/managed-by": "busbar", LABEL: record.pool},
        }
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        create_or_merge(self._api, self._path, manifest)
        of_pool = self._api.list(self._path, labelSelector=f"{LABEL}={record.pool}")
        # UTC, as Kubernetes writes it: in the order of time.
        of_pool.sort(key=lambda each: each["metadata"].get("creationTimestamp") or "", reverse=True)
        updates, others = list[JsonObject](), list[JsonObject]()
        for each in of_pool:
            stored = _stored(each)
            (updates if stored and stored[0].kind == "update" else others).append(each)
        for each in (*updates[RECORDS:], *others[RECORDS:]):
            delete(self._api, f"{self._path}/{each['metadata']['name']}", each["metadata"]["uid"])

    def _summary(self, found: JsonObject) -> dict[str, Any] | None:
        stored = _stored(found)
        if stored is None:
            return None
        record, verdict = stored
        return summarize(verdict, record=record, config_map=self.address(record.job_uid))


def _name(uid: str) -> str:
    # A log that is judged again is the same measurement with another verdict.
    return f"nccl-history-{short(sha256(uid))}"


def former_result(api: Api, job: JsonObject) -> JsonObject | None:
    """The result of the last update of the job's pool if it is a pass or a fail. Raises ApiError."""
    results = _of_updates(api, *_pool_of(job))
    return results[0] if results and results[0]["verdict"] in ("pass", "fail") else None


def after_quarantine(api: Api, job: JsonObject) -> WhenBusy | None:
    """`keep` for a job after a quarantine that has ended since the last update.

    That is one on a worker that was measured before, and not by that update, or the job of that update. None
    where a worker that was measured by that update is another machine now.
    """
    records = [each["record"] for each in _of_updates(api, *_pool_of(job))]
    if not records or joined_since(api, records[0]):
        return None
    last = records[0]
    released = {node for each in records for node in each["nodes"]} - set(last["nodes"])
    if last["settings"].get(JOB) == job["metadata"]["name"] or released & set(nodes_of(job)):
        return WhenBusy(PATIENCE_SECONDS, keep=True)
    return None


def joined_since(api: Api, record: JsonObject) -> list[str]:
    """The Nodes of a record that are newer than it: other machines, or installed anew. Raises ApiError."""
    nodes, since = (node["metadata"] for node in api.list(NODES)), record["measured_at"] or ""
    return [
        node["name"]
        for node in nodes
        if node["name"] in record["nodes"] and node["creationTimestamp"] > since
    ]


def _pool_of(job: JsonObject) -> tuple[str, str]:
    return job["metadata"]["namespace"], (job["metadata"].get("labels") or {}).get(POOL_LABEL, "")


def _of_updates(api: Api, namespace: str, pool: str) -> list[JsonObject]:
    return [each for each in Results(api, namespace).all(pool) if each["record"]["kind"] == "update"]


def _stored(found: JsonObject) -> tuple[Record, dict[str, Any]] | None:
    try:
        record = Record.model_validate_json(found["data"][RECORD])
        verdict = json.loads(found["data"][KEY])
        return (record, verdict) if verdict["schema"] == SCHEMA else None
    except (KeyError, TypeError, ValueError):
        return None


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
