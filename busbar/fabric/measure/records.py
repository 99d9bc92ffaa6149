"""The record of each measurement of a stack: a ConfigMap in the cluster, and a line of a file beside it.

The cluster has the last RECORDS of a pool, for whoever has its kubeconfig; the file `history.jsonl` in
.busbar/STACK/POOL has all that were made from this machine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from busbar.collect.busy import hostnames
from busbar.collect.collector import Collected
from busbar.collect.result import KEY as VERDICT_KEY
from busbar.collect.spec import CollectSpec
from busbar.fabric.measure.history import Run
from busbar.fabric.measure.plan import RUN_LABEL
from busbar.fabric.measure.run import listed_if_served
from busbar.judge.archive import VERDICT
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.gpus import IDLE_LABEL
from busbar.kube.objects import create_or_merge, delete
from busbar.kube.wait import ProgressCallback
from busbar.manifests.mpijob import API_VERSION
from busbar.manifests.names import sha256, short
from busbar.outputs.pool import PoolResult, summarize

LABEL = "busbar/history"
"""Of the ConfigMap of a record: the name of the pool."""
KEY = "run.json"
FILE = "history.jsonl"
RECORDS = 100
# Fields of the expectation that follow from the Nodes.
_NOT_SETTINGS = {"nodes", "hosts", "reasoning"}
# The launcher's script has these options.
_ITERATIONS = re.compile(r" -n (\d+) -w (\d+) ")


def run_of(pool: str, found: Collected, folder: str) -> Run:
    """The record of what was collected from a job. Raises KeyError and ValueError for a job of others."""
    job = found.job or {}
    worker = _template(job, "Worker")
    labels = job["metadata"].get("labels") or {}
    is_idle = IDLE_LABEL in worker["metadata"].get("labels", {})
    kind = "idle" if is_idle else "measure" if RUN_LABEL in labels else "update"
    short_ = summarize(found.verdict, verdict_file=f"{folder}/{VERDICT}", measured_at=found.measured_at)
    result = PoolResult.model_validate({**short_, "nodes_measured": sorted(hostnames(worker["spec"]))})
    settings = settings_of(job, found.verdict["expectation"])
    return Run(str(job["metadata"]["uid"]), pool, kind, settings, result)


def settings_of(job: JsonObject, expectation: Mapping[str, Any]) -> dict[str, str]:
    """Under which settings an MPIJob measures, by name, from its object and the expectation of a verdict."""
    annotations = job["metadata"].get("annotations") or {}
    [worker] = _template(job, "Worker")["spec"]["containers"]
    [launcher] = _template(job, "Launcher")["spec"]["containers"]
    found: dict[str, Any] = {
        key: value
        for key, value in expectation.items()
        if key not in _NOT_SETTINGS and value not in (None, [], {})
    }
    found |= json.loads(annotations.get("busbar/versions") or "{}")
    found |= {"image": worker["image"], **worker["resources"]["limits"]}
    found |= {f"env {each['name']}": each["value"] for each in launcher.get("env") or []}
    if "busbar/topology-sha256" in annotations:
        found["topology"] = short(annotations["busbar/topology-sha256"])
    if numbers := _ITERATIONS.search(launcher["command"][-1]):
        found |= {"iterations": numbers[1], "warmup": numbers[2]}
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items() if value
    }


def record(
    api: Api, pool: str, folder: Path, found: Collected, spec: CollectSpec, progress: ProgressCallback
) -> None:
    """Write the record of a measurement into FOLDER, that of its pool, and into the cluster.

    What cannot be written is a message, because there is a verdict.
    """
    if found.job is None:
        return
    try:
        run = run_of(pool, found, spec.folder)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / FILE, "a", encoding="utf-8", opener=_for_owner) as file:
            file.write(run.as_json() + "\n")
        _store(api, f"/api/v1/namespaces/{spec.namespace}/configmaps", run)
    except (OSError, ApiError, KeyError, ValueError) as error:
        progress(f"the measurement has no record for busbar history: {error!r}")


def _for_owner(path: str, flags: int) -> int:
    # The environment of the ranks is in it.
    return os.open(path, flags, 0o600)


def read_folder(folder: Path) -> list[Run]:
    """The records in the folders of all pools of a stack, .busbar/STACK."""
    texts = (file.read_text(encoding="utf-8").splitlines() for file in sorted(folder.glob(f"*/{FILE}")))
    return _readable(line for lines in texts for line in lines)


def read_cluster(api: Api, namespace: str, stack: str) -> list[Run]:
    """The records in the cluster, and the last update of each pool of STACK, also if an earlier release
    measured it. Raises ApiError."""
    found = api.list(f"/api/v1/namespaces/{namespace}/configmaps", labelSelector=LABEL)
    records = _readable((each.get("data") or {}).get(KEY, "") for each in found)
    return [*_of_updates(api, namespace, stack), *records]


def _of_updates(api: Api, namespace: str, stack: str) -> Iterator[Run]:
    """From the MPIJobs of updates and the verdicts on them."""
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/mpijobs"
    for job in listed_if_served(api, path, "app.kubernetes.io/managed-by=busbar"):
        metadata = job["metadata"]
        pool = metadata["labels"].get("busbar/pool", "")
        of_job = f"busbar/job={metadata['name']}"
        maps = api.list(f"/api/v1/namespaces/{namespace}/configmaps", labelSelector=of_job)
        # One per expectation under which its log was judged.
        maps.sort(key=lambda each: each["metadata"].get("creationTimestamp") or "")
        for each in maps[-1:] if RUN_LABEL not in metadata["labels"] else ():
            try:
                verdict = json.loads(each["data"][VERDICT_KEY])
                found = Collected(verdict, measured_at=metadata["creationTimestamp"], job=job)
                yield run_of(pool, found, f".busbar/{stack}/{pool}")
            except (KeyError, ValueError):
                continue  # not written by busbar


def _readable(texts: Iterable[str]) -> list[Run]:
    return [run for text in texts if (run := Run.read(text))]


def _store(api: Api, configmaps: str, run: Run) -> None:
    """Create or replace the ConfigMap of a record, and delete the oldest beyond RECORDS."""
    # A log that is judged again is the same measurement with another verdict.
    name = f"nccl-history-{short(sha256(run.id))}"
    labels = {"app.kubernetes.io/managed-by": "busbar", LABEL: run.pool}
    manifest = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels},
        "data": {KEY: run.as_json()},
    }  # fmt: skip
    create_or_merge(api, configmaps, manifest)
    of_pool = api.list(configmaps, labelSelector=f"{LABEL}={run.pool}")
    # UTC, as Kubernetes writes it: in the order of time.
    of_pool.sort(key=lambda each: each["metadata"].get("creationTimestamp") or "", reverse=True)
    for each in of_pool[RECORDS:]:
        delete(api, f"{configmaps}/{each['metadata']['name']}", each["metadata"]["uid"])


def _template(job: JsonObject, replica: str) -> JsonObject:
    found: JsonObject = job["spec"]["mpiReplicaSpecs"][replica]["template"]
    return found
