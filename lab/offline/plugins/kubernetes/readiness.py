"""When a live object counts as ready, by kind; and its progress until then.

After pulumi-kubernetes 4.34 (provider/pkg/await). Kinds that are not listed are ready as soon as they exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lab.offline.plugins.kubernetes.client import Object
from lab.offline.plugins.kubernetes.kinds import Kind, annotation, metadata


@dataclass(frozen=True)
class Readiness:
    """`fatal` reasons end the wait at once."""

    ready: bool
    progress: str = ""
    problems: tuple[str, ...] = ()
    fatal: tuple[str, ...] = ()


Check = Callable[[Object], Readiness]


def check_for(obj: Object) -> Check | None:
    """The check for the object's kind, None where existing is enough."""
    kind = Kind.of(obj)
    return _CHECKS.get((kind.group, kind.kind))


def conditions(obj: Object) -> dict[str, dict[str, Any]]:
    """The object's status conditions by type."""
    found = (obj.get("status") or {}).get("conditions") or []
    return {item.get("type", ""): item for item in found if isinstance(item, dict)}


def _observed(obj: Object) -> bool:
    return int((obj.get("status") or {}).get("observedGeneration", 0)) >= int(
        metadata(obj).get("generation", 0)
    )


def _deployment(obj: Object) -> Readiness:
    status, found = obj.get("status") or {}, conditions(obj)
    wanted = int(obj["spec"].get("replicas", 1))
    ready, updated = int(status.get("readyReplicas", 0)), int(status.get("updatedReplicas", 0))
    available = found.get("Available", {}).get("status") == "True"
    progressing = found.get("Progressing", {})
    rolled_out = progressing.get("reason") == "NewReplicaSetAvailable" and progressing.get("status") == "True"
    first = annotation(obj, "deployment.kubernetes.io/revision") == "1"
    problems = [
        f"[{item.get('reason')}] {item.get('message')}"
        for name in ("Progressing", "Available")
        if (item := found.get(name)) and item.get("status") != "True"
    ]
    if not available:
        problems.append("Minimum number of live Pods was not attained")
    elif not rolled_out and not first:
        problems.append("Minimum number of Pods to consider the application live was not attained")
    elif ready < wanted:
        problems.append(
            "Attempted to roll forward to new ReplicaSet, but minimum number of Pods did not become live"
        )
    done = _observed(obj) and available and (rolled_out or first) and updated >= wanted and ready >= wanted
    return Readiness(
        done, f"Waiting for app ReplicaSet to be available ({ready}/{wanted} Pods available)", tuple(problems)
    )


def _daemon_set(obj: Object) -> Readiness:
    status = obj.get("status") or {}
    wanted = int(status.get("desiredNumberScheduled", -1))
    counts = {
        name: int(status.get(name, 0))
        for name in ("currentNumberScheduled", "updatedNumberScheduled", "numberAvailable")
    }
    counts["numberReady"] = int(status.get("numberReady", 0))
    lacking = [f"{name}: {count}/{wanted}" for name, count in counts.items() if count < wanted]
    done = _observed(obj) and wanted >= 0 and not lacking
    return Readiness(done, ", ".join(lacking) or "Waiting for the DaemonSet to be observed", tuple(lacking))


def _stateful_set(obj: Object) -> Readiness:
    status, wanted = obj.get("status") or {}, int(obj["spec"].get("replicas", 1))
    ready = int(status.get("readyReplicas", 0))
    current = status.get("currentRevision") == status.get("updateRevision")
    progress = f"Waiting for StatefulSet to be available ({ready}/{wanted} Pods ready)"
    return Readiness(_observed(obj) and ready >= wanted and (current or wanted == 0), progress, (progress,))


def _pod(obj: Object) -> Readiness:
    problems = tuple(pod_problems(obj))
    if (obj.get("status") or {}).get("phase") == "Succeeded":
        return Readiness(True)
    ready = conditions(obj).get("Ready", {}).get("status") == "True"
    return Readiness(ready, f"Waiting for Pod {metadata(obj).get('name')!r} to be ready", problems)


def _job(obj: Object) -> Readiness:
    status, found = obj.get("status") or {}, conditions(obj)
    counts = " | ".join(
        f"{name.title()}: {status.get(name, 0)}" for name in ("active", "succeeded", "failed")
    )
    failed = found.get("Failed", {})
    fatal: tuple[str, ...] = ()
    if failed.get("status") == "True" and failed.get("reason") in (
        "BackoffLimitExceeded",
        "DeadlineExceeded",
    ):
        fatal = (f"[{failed['reason']}] {failed.get('message', '')}",)
    done = bool(status.get("startTime")) and found.get("Complete", {}).get("status") == "True"
    return Readiness(
        done, f"Waiting for Job {metadata(obj).get('name')!r} to succeed ({counts})", fatal=fatal
    )


def _claim(obj: Object) -> Readiness:
    phase = (obj.get("status") or {}).get("phase")
    return Readiness(phase == "Bound", f"Waiting for the claim to be bound (now {phase})")


def _volume(obj: Object) -> Readiness:
    phase = (obj.get("status") or {}).get("phase")
    return Readiness(phase in ("Available", "Bound"), f"Waiting for the volume to be available (now {phase})")


def _service(obj: Object) -> Readiness:
    if obj["spec"].get("type") != "LoadBalancer":
        return Readiness(True)
    addresses = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress")
    text = "Service was not allocated an IP address; does your cloud provider support this?"
    return Readiness(bool(addresses), "Attempting to allocate IP address to Service", (text,))


def _secret(obj: Object) -> Readiness:
    waits = obj.get("type") == "kubernetes.io/service-account-token"
    return Readiness(not waits or bool(obj.get("data")), "Waiting for the token")


_CHECKS: Final[dict[tuple[str, str], Check]] = {
    ("apps", "Deployment"): _deployment,
    ("apps", "DaemonSet"): _daemon_set,
    ("apps", "StatefulSet"): _stateful_set,
    ("batch", "Job"): _job,
    ("", "Pod"): _pod,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "PersistentVolume"): _volume,
    ("", "Service"): _service,
    ("", "Secret"): _secret,
}


def pod_problems(pod: Object) -> list[str]:
    """What keeps a pod from being ready, from its conditions and containers."""
    name = f"{metadata(pod).get('namespace')}/{metadata(pod).get('name')}"
    found, problems = conditions(pod), []
    for kind in ("PodScheduled", "Ready"):
        item = found.get(kind, {})
        if item.get("status") != "True" and item.get("message"):
            problems.append(f"[Pod {name}]: {item['message']}")
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        if not container.get("ready"):
            problems += [f"[Pod {name}]: {text}" for text in _container_problems(container)]
    return problems


def _container_problems(status: Object) -> list[str]:
    found = []
    waiting = (status.get("state") or {}).get("waiting") or {}
    if waiting and waiting.get("reason") != "ContainerCreating":
        found.append(f"[{waiting.get('reason')}] {waiting.get('message', '')}".rstrip())
    ended = (status.get("state") or {}).get("terminated") or {}
    if ended.get("reason"):
        text = f"[{ended['reason']}] {ended['message']}" if ended.get("message") else ""
        found.append(text or f'container "{status["name"]}" completed with exit code {ended.get("exitCode")}')
    last = (status.get("lastState") or {}).get("terminated") or {}
    if last:
        reason = f"({last.get('reason')}: exit code {last.get('exitCode')})"
        found.append(f'container "{status["name"]}" terminated at {last.get("finishedAt")} {reason}')
        if last.get("message"):
            found.append(str(last["message"]))
    return found
