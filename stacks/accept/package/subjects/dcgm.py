"""dcgmi diag of an image: a pod per node, with all of its GPUs, in a namespace of this run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from busbar.collect.follower import LogFollower, has_started
from busbar.collect.watch import ENDED, PERSISTENT_SECONDS, PODS_PER_SECOND, POLL_SECONDS, phase
from busbar.fabric.measure import CannotMeasure, LeftBehind, Plan, Preempted
from busbar.fabric.measure.plan import marked
from busbar.fabric.measure.run import run
from busbar.hosts import scripts
from busbar.hosts.scripts import script_result
from busbar.judge.collector import LogLost
from busbar.kube.client import ApiError, JsonObject
from busbar.kube.gpus import IDLE_LABEL
from busbar.kube.pods import issue_report, issues_of
from busbar.kube.wait import Deadline, Pending, TimedOut, wait_until
from busbar.manifests import names
from busbar.manifests.scheduling import GPU_RESOURCE, PRIORITY_CLASSES, pod_on, priority_class
from busbar.text import counted, listed
from stacks.accept.package.evidence import Printed, job_of
from stacks.accept.package.running import Running
from stacks.accept.package.site import validation_of
from stacks.accept.package.subjects.collectives import clean_up, plan_when_free

CONTAINER = "dcgm"
# The script of the pod ends the test after 45 minutes. Before it the image, of 1 GB, is pulled.
POD_SECONDS, LOG_SECONDS = 3600, 60
_ENVIRONMENT = {"VERB": "stress", "ENGINE": "start", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


@dataclass(frozen=True)
class Pods(Plan):
    """Pods that run dcgmi diag on the nodes of a plan, in place of its job."""

    image: str = ""

    def objects(self, annotations: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
        """The objects to create, in order: the collection in the API and the manifest."""
        made = [(PRIORITY_CLASSES, priority_class(self.priority))] if self.idle else []
        made.append(("/api/v1/namespaces", names.render_namespace(self.job.namespace)))
        made += [(f"{self.inside}/pods", self._pod(*each)) for each in self.names.items()]
        return [(path, marked(manifest, self.run, annotations)) for path, manifest in made]

    @property
    def inside(self) -> str:
        """The namespace in the API."""
        return f"/api/v1/namespaces/{self.job.namespace}"

    @property
    def names(self) -> dict[str, str]:
        """Pod -> node."""
        return {f"dcgm-{number}": node for number, node in enumerate(self.job.nodes)}

    def _pod(self, name: str, node: str) -> dict[str, Any]:
        job, environment = self.job, {**_ENVIRONMENT, "NODE_NAME": node}
        container = {
            "name": CONTAINER,
            "image": self.image,
            "command": ["/bin/bash", "-c", scripts.text("accept/measure")],
            "env": [{"name": key, "value": value} for key, value in environment.items()],
            "resources": {"limits": {GPU_RESOURCE: job.gpus_per_node}},
            # NVIDIA's pages run this image so.
            "securityContext": {"runAsUser": 0, "capabilities": {"add": ["SYS_ADMIN"]}},
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        spec = {
            **pod_on([node], job.taints, container),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": POD_SECONDS,
            **({"runtimeClassName": job.runtime_class} if job.runtime_class else {}),
            **({"priorityClassName": self.priority} if self.idle else {}),
        }
        labels = {"app.kubernetes.io/managed-by": "busbar", **({IDLE_LABEL: "true"} if self.idle else {})}
        return {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec
        }  # fmt: skip


def in_pods(on: Running, number: int, pool: str, image: str) -> Printed:
    """The output of dcgmi diag on the free nodes of a pool. Raises as `plan_when_free`, and Preempted."""
    begin = job_of(on.run, "stress", number)
    clean_up(on, [begin])
    name = f"{begin}-{os.urandom(2).hex()}"
    planned = plan_when_free(on, pool, name, validation_of(on.cluster.validation_of(pool)))
    job = replace(planned.job, namespace=f"busbar-{name}")
    plan = Pods(**{**vars(planned), "job": job, "owns_namespace": True}, image=image)
    deadline = Deadline(on.clock, POD_SECONDS + PERSISTENT_SECONDS)
    try:
        hosts = run(
            on.api, plan, deadline.seconds, lambda: _follow(on, plan, deadline), on.clock, on.say, on.options
        )
    except LeftBehind as left:
        on.say(f"warning: {left}")
        hosts = left.found
    except Preempted:
        raise
    except CannotMeasure as refused:
        hosts = {node: {"error": str(refused), "diag": ""} for node in job.nodes}
    return Printed(run=on.run, hosts=hosts)


def _follow(on: Running, plan: Pods, deadline: Deadline) -> dict[str, dict[str, Any]]:
    """Node -> what its pod has printed, or why it has not, once no pod can print more."""
    pods: dict[str, JsonObject] = {}
    since: dict[str, float] = {}

    def ended() -> Pending | None:
        nonlocal pods, since
        pods = {pod["metadata"]["name"]: pod for pod in on.api.list(f"{plan.inside}/pods")}
        now, issues = deadline.elapsed, {name: [*issues_of(pod)] for name, pod in pods.items()}
        lasting = [name for name, found in issues.items() if any(each.persistent for each in found)]
        since = {name: since.get(name, now) for name in lasting}
        running = [
            name
            for name, pod in pods.items()
            if phase(pod) not in ENDED
            and not any(each.permanent for each in issues[name])
            and now - since.get(name, now) < PERSISTENT_SECONDS
        ]
        state = f"dcgmi diag on {counted(len(running), 'node')}"
        return Pending(state, POLL_SECONDS + len(pods) / PODS_PER_SECOND) if running else None

    try:
        wait_until(ended, deadline, poll_seconds=POLL_SECONDS, progress=on.say)
    except TimedOut as timeout:
        if timeout.error:
            raise
    gone = [node for name, node in plan.names.items() if name not in pods]
    if plan.idle and gone:
        raise Preempted([f"the pods on {listed(gone, 8)} made room for other pods"])
    return {node: _printed(on, plan, pods.get(name)) for name, node in plan.names.items()}


def _printed(on: Running, plan: Pods, pod: JsonObject | None) -> dict[str, Any]:
    if pod is None:
        return {"error": "its pod was deleted", "diag": ""}
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    about = {"image": plan.image, "image_id": statuses[0].get("imageID") or ""}
    name, limit = pod["metadata"]["name"], Deadline(on.clock, LOG_SECONDS)
    try:
        if phase(pod) in ENDED and has_started(pod, CONTAINER):
            log = LogFollower(on.api, plan.job.namespace, name, CONTAINER, limit, on.say)
            return {**script_result(b"".join(log.lines()).decode(errors="replace")), **about}
    except (LogLost, ApiError, ValueError) as error:
        on.say(f"warning: {plan.names[name]}: {error}")
    found = [each.what for each in issues_of(pod)]
    if not found:
        events = wait_until(lambda: on.api.list(f"{plan.inside}/events"), limit, poll_seconds=POLL_SECONDS)
        found = [*issue_report([pod], events), f"its pod is {phase(pod)}, with no output"]
    return {"error": found[0], "diag": "", **about}
