"""Watch the Job of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from busbar.collect.watch import Watch
from busbar.kube.client import JsonObject
from stacks.training.package.proof import CONTAINER, INDEX_ANNOTATION, JOB_LABEL


class JobWatch(Watch):
    """One Job, whose log is that of the pod with index 0."""

    kind = "Job"
    resource = "batch/v1/namespaces/{namespace}/jobs"
    label = JOB_LABEL
    container = CONTAINER
    complete = "Complete"
    suspended: ClassVar[JsonObject] = {"suspend": True}
    first = "the run"
    workers = "pods"
    number = "proof.run"

    def _first(self, pods: Sequence[JsonObject]) -> JsonObject | None:
        return next((pod for pod in pods if _index(pod) == "0"), None)


def _index(pod: JsonObject) -> str | None:
    found: str | None = (pod["metadata"].get("annotations") or {}).get(INDEX_ANNOTATION)
    return found
