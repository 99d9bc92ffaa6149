"""The verdict in the cluster: a ConfigMap whose name depends on the job and on the expectation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from busbar.kube.client import Api
from busbar.kube.objects import create, find
from busbar.manifests.names import digest, short

KEY = "verdict.json"
# A ConfigMap holds 1 MiB; a verdict has some 20 KB, also for 3,520 ranks.
MAX_BYTES = 512 * 1024


class ResultStore:
    """The stored verdict of one job under one expectation.

    The job's uid is part of the name: the same job run again is another measurement.
    """

    def __init__(self, api: Api, namespace: str, job: str, uid: str, expectation: Mapping[str, Any]) -> None:
        self._api = api
        self._job, self._uid = job, uid
        self._collection = f"/api/v1/namespaces/{namespace}/configmaps"
        content = digest({"uid": uid, "expectation": dict(expectation)})
        self.name = f"{job}-result-{short(content)}"
        self.address = f"{namespace}/{self.name}"

    def read(self) -> dict[str, Any] | None:
        """The stored verdict, or None. Raises ApiError when the API is not responding."""
        stored = find(self._api, f"{self._collection}/{self.name}") or {}
        try:
            verdict = json.loads((stored.get("data") or {})[KEY])
        except (KeyError, ValueError):
            return None
        return verdict if isinstance(verdict, dict) else None

    def write(self, verdict: Mapping[str, Any]) -> None:
        """Store the verdict; one that exists stays. Raises ApiError, and ValueError for its size."""
        text = json.dumps(verdict, sort_keys=True, separators=(",", ":"))
        if len(text) > MAX_BYTES:
            raise ValueError(f"the verdict has {len(text)} bytes, the limit is {MAX_BYTES}")
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self.name,
                "labels": {"app.kubernetes.io/managed-by": "busbar", "busbar/job": self._job},
                # Deleted together with the job.
                "ownerReferences": [
                    {
                        "apiVersion": "kubeflow.org/v2beta1",
                        "kind": "MPIJob",
                        "name": self._job,
                        "uid": self._uid,
                    }
                ],
            },
            "immutable": True,
            "data": {KEY: text},
        }
        create(self._api, self._collection, manifest)
