"""From a running training job to a verdict: watch the Job, follow the log of its first pod, judge it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from busbar.cli.engine import followed
from busbar.collect.spec import GRACE_SECONDS, JobSpec
from busbar.collect.watch import CONDITION_SECONDS, POLL_SECONDS, Watch
from busbar.judge.archive import VERDICT, Archive
from busbar.judge.checks import JobOutcome
from busbar.judge.collector import Collector
from busbar.kube import objects
from busbar.kube.client import Api, JsonObject
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, wait_until
from stacks.training.package.config import Training
from stacks.training.package.log import TrainingLog, progress_text, read_lines
from stacks.training.package.outputs import summarize
from stacks.training.package.proof import CONTAINER, INDEX_ANNOTATION, JOB_LABEL, RUN_LABEL
from stacks.training.package.target import Expectation, Target, expectation
from stacks.training.package.verdict import Verdict, judge

_SET_BY_THE_API = ("controller-uid", RUN_LABEL, "job-name", JOB_LABEL)


class CollectSpec(JobSpec):
    """The request of the step `collect`: the Job of a training run."""

    expectation: Expectation


def collect_spec(target: Target, training: Training, job: str, *, folder: str) -> CollectSpec:
    """The request for one pool's run."""
    return CollectSpec(
        namespace=training.namespace,
        job=job,
        folder=folder,
        deadline_seconds=training.proof.deadline_seconds + GRACE_SECONDS,
        expectation=expectation(target, training),
    )


def collect_run(api: Api, spec: CollectSpec, clock: Clock, progress: ProgressCallback) -> dict[str, Any]:
    """The step `collect`: follow the Job, judge its log, and keep both. Returns the verdict in short.

    Raises ApiError, and Failed when nothing is known or kubelets have rejected the job's pods twice.
    """
    collector = RunCollector(api, spec, clock, progress)
    verdict = followed("Job", "the job's first pod", spec, collector.run)
    return summarize(verdict, verdict_file=f"{spec.folder}/{VERDICT}")


def judge_folder(folder: Path) -> Verdict | None:
    """Judge the log that `collect` has kept in a folder, from this alone; None without the whole log."""
    archive = Archive(folder)
    kept = archive.record()
    if archive.complete_log_of is None or not kept.keys() >= {"expectation", "outcome"}:
        return None
    expectation = Expectation.model_validate(kept["expectation"])
    return judge(read_lines(archive.log_lines()), expectation, JobOutcome(**kept["outcome"]))


class RunCollector(Collector[TrainingLog, Verdict]):
    """From the Job of a training run to its verdict; log and verdict are kept in `spec.folder`."""

    read = staticmethod(read_lines)
    progress_text = staticmethod(progress_text)

    def __init__(self, api: Api, spec: CollectSpec, clock: Clock, progress: ProgressCallback) -> None:
        deadline = Deadline(clock, spec.deadline_seconds)
        self._watch = JobWatch(api, spec.namespace, spec.job, deadline, progress)
        super().__init__(self._watch, Archive(Path(spec.folder)), progress)
        self._expectation = spec.expectation
        self._outcome = JobOutcome(None)

    def judge(self, log: TrainingLog, outcome: JobOutcome, missing: Sequence[str] = ()) -> Verdict:
        self._outcome = outcome
        return judge(log, self._expectation, outcome, tuple(missing))

    def store(self, uid: str, verdict: Verdict) -> None:
        """Keep beside a complete log what it is judged by."""
        if self.archive.complete_log_of == uid:
            about = {"expectation": verdict.expectation, "outcome": asdict(self._outcome)}
            self.archive.mark_complete(uid, {**about, "measured_at": self._watch.created_at})

    def report(self, verdict: Verdict) -> str:
        return str(self.archive.folder)


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
        annotations = [(pod, pod["metadata"].get("annotations") or {}) for pod in pods]
        return next((pod for pod, found in annotations if found.get(INDEX_ANNOTATION) == "0"), None)

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
