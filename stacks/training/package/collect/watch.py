"""Watch the Job of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from busbar.collect.watch import CONDITION_SECONDS, POLL_SECONDS, Watch
from busbar.kube import objects
from busbar.kube.client import JsonObject
from busbar.kube.wait import Deadline, Pending, wait_until
from stacks.training.package.proof import CONTAINER, INDEX_ANNOTATION, JOB_LABEL, RUN_LABEL

_SET_BY_THE_API = ("controller-uid", RUN_LABEL, "job-name", JOB_LABEL)


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

    def _make_again(self, job: JsonObject) -> None:
        """Create the Job anew: it has failed with its rejected pod, and nothing resumes a failed Job."""
        deadline = Deadline(self.deadline.clock, CONDITION_SECONDS)

        def made() -> bool | Pending:
            found = objects.find(self._api, self.path)
            if found and found["metadata"]["uid"] == job["metadata"]["uid"]:
                objects.delete(self._api, self.path, job["metadata"]["uid"])
                return Pending(f"{self.name} is being deleted")
            # By default the API leaves the pods of a Job in the cluster.
            for pod in self._pods():
                metadata = pod["metadata"]
                objects.delete(self._api, f"{self._base}/pods/{metadata['name']}", metadata["uid"])
            return objects.create(self._api, self.path.rpartition("/")[0], _anew(job))

        wait_until(made, deadline, poll_seconds=POLL_SECONDS, progress=self._progress)


def _anew(job: JsonObject) -> JsonObject:
    """The Job as it was created, without its status and the labels by which the API tells its pods."""
    metadata = {key: job["metadata"].get(key) for key in ("name", "namespace", "labels", "annotations")}
    template = job["spec"]["template"]
    labels = template["metadata"].get("labels") or {}
    own = {key: value for key, value in labels.items() if key not in _SET_BY_THE_API}
    spec = {key: value for key, value in job["spec"].items() if key not in ("selector", "suspend")}
    spec["template"] = {**template, "metadata": {**template["metadata"], "labels": own}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _index(pod: JsonObject) -> str | None:
    found: str | None = (pod["metadata"].get("annotations") or {}).get(INDEX_ANNOTATION)
    return found
