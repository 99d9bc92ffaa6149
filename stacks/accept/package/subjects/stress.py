"""Stress of each node alone by DCGM, on all nodes at once: DCGM of the hosts, or of an image in pods."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from busbar.collect.follower import LogFollower, has_started
from busbar.collect.watch import ENDED, PERSISTENT_SECONDS, PODS_PER_SECOND, POLL_SECONDS, phase
from busbar.fabric.measure import CannotMeasure, LeftBehind, Plan, Preempted
from busbar.fabric.measure.plan import marked
from busbar.fabric.measure.run import run
from busbar.hosts import scripts
from busbar.judge.collector import LogLost
from busbar.kube.client import ApiError, JsonObject
from busbar.kube.gpus import IDLE_LABEL
from busbar.kube.pods import issue_report, issues_of
from busbar.kube.wait import Deadline, Pending, TimedOut, wait_until
from busbar.manifests import names
from busbar.manifests.scheduling import GPU_RESOURCE, PRIORITY_CLASSES, pod_on, priority_class
from busbar.text import counted, listed
from stacks.accept.package.evidence import PRINTED, Printed, Untrusted, write_json
from stacks.accept.package.kinds import Finding, Outcome, Question, kind, on_each, sentences
from stacks.accept.package.running import Planned, Running
from stacks.accept.package.site import Pool, validation_of

# The option that names the image.
DCGM_IMAGE = "dcgm-image"
# Those of level 3 that need no other package: software per host, the others per GPU. A GPU also fails
# if heat, hardware or the power brake slow it down (DCGM nvvs, DcgmRecorder::CheckForThrottling).
WANTED = (
    "software", "memory", "pcie", "diagnostic", "memory_bandwidth", "targeted_stress", "targeted_power"
)  # fmt: skip
# error_severity of DCGM (DCGM dcgm_errors.h).
CONFIG = 5


def tests_of(text: str) -> dict[str, list[dict[str, Any]]]:
    """Name of a test -> its results, from `dcgmi diag -j` of DCGM 2 to 4. Raises Untrusted."""
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        root = json.loads(text)
        root = root.get("DCGM Diagnostic") or root["DCGM GPU Diagnostic"]
        for category in root.get("test_categories", ()):
            for test in category["tests"]:
                # Older releases have a test per question on the software.
                deployment = category.get("category") == "Deployment"
                name = "software" if deployment else test["name"].lower().replace(" ", "_")
                found.setdefault(name, []).extend({**result} for result in test["results"])
        if error := root.get("runtime_error"):
            raise Untrusted(f"dcgmi diag: {str(error)[:200]}")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise Untrusted(f"dcgmi diag printed other JSON than expected: {type(error).__name__}") from None
    return found


def _gpus(result: dict[str, Any]) -> set[str]:
    """The GPUs of a result; older releases list several in one."""
    ids = next((result[key] for key in ("entity_id", "gpu_id", "gpu_ids") if key in result), "")
    return {each.strip() for each in str(ids).split(",")}


def _warnings(result: dict[str, Any]) -> str:
    """The warnings of a result, a text in older releases; it says where all are of the configuration."""
    found = result.get("warnings")
    listing = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    texts = [str(each.get("warning"))[:200] for each in listing] or [str(found or "no reason")[:200]]
    is_config = listing and all(each.get("error_severity") == CONFIG for each in listing)
    return ("configuration, not hardware: " if is_config else "") + sentences(texts, 2)


@kind("stress.diag", "every test of dcgmi diag -r 3 passes on every GPU", required=False)
def _diag(asked: Question) -> Finding:
    found, hosts = on_each(_results, "stress")(asked), asked.evidence.printed("stress").hosts.values()
    images = sorted({str(each["image_id"]) for each in hosts if each.get("image_id")})
    return replace(found, reason=f"{found.reason}; image {listed(images)}") if images else found


def _results(pool: Pool, printed: dict[str, Any]) -> Iterator[tuple[Outcome, str]]:
    if not printed.get("diag"):
        yield "not run", str(printed.get("error") or "dcgmi printed nothing")
        return
    try:
        tests = tests_of(str(printed["diag"]))
    except Untrusted as error:
        yield "unknown", f"{error}; {printed.get('error')}"
        return
    for name, results in tests.items():
        failed: dict[str, set[str]] = {}
        for result in results:
            if str(result.get("status")).lower() == "fail":
                failed.setdefault(f"{name} fails: {_warnings(result)}", set()).update(_gpus(result))
        yield from (("fail", f"{text} (GPU {listed(sorted(gpus), 8)})") for text, gpus in failed.items())
    for name in WANTED:
        results = tests.get(name, [])
        passed: set[str] = set()
        for result in results:
            status = str(result.get("status"))
            if status.lower() == "pass":
                passed |= _gpus(result)
            elif status.lower() != "fail":
                yield "not run", f"{name}: {status or 'no status'} {str(result.get('info') or '')[:200]}"
        if not results:
            yield "not run", f"{name} is not in the output"
        elif name != "software" and len(passed) < pool.required.gpus:
            yield "not run", f"{name} passed on {len(passed)} of {pool.required.gpus} GPUs"


# Level 3 takes 15 minutes; the script ends it after 45.
PLANNED_SECONDS, SECONDS = 900, 2800


def stress(on: Running) -> dict[str, str]:
    """Run dcgmi diag on the nodes of each pool whose GPUs are free, and were not taken meanwhile."""
    found, image = Printed(run=on.begun.run, hosts={}), on.begun.options.get(DCGM_IMAGE)
    if not (image or on.logs_in):
        return dict.fromkeys(on.pools, f"no login, and no --{DCGM_IMAGE}")
    for pool in on.pools:
        found.add(in_pods(on, pool, image) if image else _on_hosts(on, pool))
    write_json(on.at("stress") / PRINTED, found)
    return {}


def _on_hosts(on: Running, pool: str) -> Printed:
    printed = on.on_hosts(on.free_nodes(pool), "stress", SECONDS)
    kept = on.free_nodes(pool, wait=False)
    for node in printed.hosts.keys() - {*kept}:
        printed.hosts[node] = _without("a pod took GPUs of the node meanwhile")
    return printed


def _without(why: str) -> dict[str, Any]:
    """A text in place of an output of dcgmi."""
    return {"error": why, "diag": ""}


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


def in_pods(on: Running, pool: str, image: str) -> Printed:
    """The output of dcgmi diag on the free nodes of a pool. Raises as `Running.plan`, and Preempted."""
    begin = on.begun.job("stress", pool)
    on.clean_up(begin)
    name = f"{begin}-{os.urandom(2).hex()}"
    planned = on.plan(pool, name, validation_of(on.cluster.validation_of(pool)))
    job = replace(planned.job, namespace=f"busbar-{name}")
    plan = Pods(**{**vars(planned), "job": job, "owns_namespace": True}, image=image)
    deadline = Deadline(on.clock, POD_SECONDS + PERSISTENT_SECONDS)
    follow = partial(_follow, on, plan, deadline)
    try:
        hosts = run(on.api, plan, deadline.seconds, follow, on.clock, on.say, on.options)
    except LeftBehind as left:
        on.say(f"warning: {left}")
        hosts = left.found
    except Preempted:
        raise
    except CannotMeasure as refused:
        hosts = {node: _without(str(refused)) for node in job.nodes}
    return Printed(run=on.begun.run, hosts=hosts)


def _follow(on: Running, plan: Pods, deadline: Deadline) -> dict[str, dict[str, Any]]:
    """Node -> what its pod has printed, or why it has not, once no pod can print more."""
    pods = dict[str, JsonObject]()

    def can_print(pod: JsonObject) -> bool:
        # All pods begin with the deadline: what persists until then keeps a pod from its test.
        is_late, issues = deadline.elapsed >= PERSISTENT_SECONDS, [*issues_of(pod)]
        given_up = any(issue.permanent or (is_late and issue.persistent) for issue in issues)
        return phase(pod) not in ENDED and not given_up

    def ended() -> Pending | None:
        found = on.api.list(f"{plan.inside}/pods")
        pods.clear()
        pods.update((pod["metadata"]["name"], pod) for pod in found)
        running = [pod for pod in found if can_print(pod)]
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
        return _without("its pod was deleted")
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    about = {"image": plan.image, "image_id": statuses[0].get("imageID") or ""}
    name, limit = pod["metadata"]["name"], Deadline(on.clock, LOG_SECONDS)
    try:
        if phase(pod) in ENDED and has_started(pod, CONTAINER):
            log = LogFollower(on.api, plan.job.namespace, name, CONTAINER, limit, on.say)
            return {**scripts.script_result(b"".join(log.lines()).decode(errors="replace")), **about}
    except (LogLost, ApiError, ValueError) as error:
        on.say(f"warning: {plan.names[name]}: {error}")
    found = [each.what for each in issues_of(pod)]
    if not found:
        events = wait_until(lambda: on.api.list(f"{plan.inside}/events"), limit, poll_seconds=POLL_SECONDS)
        found = [*issue_report([pod], events), f"its pod is {phase(pod)}, with no output"]
    return {**_without(found[0]), **about}


STAGE = Planned("stress", stress, True, lambda nodes: PLANNED_SECONDS)
