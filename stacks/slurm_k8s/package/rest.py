"""The client of slurmctld: it asks slurmrestd through the proxy of the Kubernetes API: no login to a host.

The status of a NodeSet lags by up to a minute and counts drained nodes as idle, so it is not read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.objects import find
from stacks.slurm_k8s.package.values import API_VERSION, JWT_KEY, RELEASE

# Served by slurmrestd 25.05 to 26.05; the client of slurm-operator speaks it too.
VERSION = "v0.0.44"
PORT = 6820
USER = "slurm"
UPDATE = "busbar: update"
"""The reason of the drains of an update, by which a later run knows them."""
TOKEN_SECONDS = 1800
WORKER = f"{RELEASE}-worker-"
"""Begins the name of the NodeSet of a pool, and of the pod of a node of Slurm."""
POD_LABELS = "app.kubernetes.io/component=worker"
POD_CORDON = "nodeset.slinky.slurm.net/pod-cordon"
# In the comment of a node the operator names its pod, as JSON.
_POD_NAME = '"podName"'
_BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}
_BAD = (
    "DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "INVALID_REG", "UNKNOWN", "FUTURE", "REBOOT_ISSUED",
    "MAINTENANCE", "RESERVED",
)  # fmt: skip
OF_OPERATOR = "slurm-operator: "
# Reasons of slurmctld's own, which the next registration of the node ends, or sets again.
_OF_SLURMCTLD = re.compile(r"gres/\S+ count .*\(\d+ < \d+\)|Not responding|Node unexpectedly rebooted")
# Reasons with which it drains a node that fails (24.11.5).
_FAILS = re.compile("Low |Kill task failed|(Pro|Epi)log error|Duplicate jobid|batch job complete failure")
_NOTED = " : Not responding"  # which slurmctld adds to a reason that is there already
# Limits of a partition -> where slurmrestd has them; it tells flags since Slurm 26.05.
_LIMITS = {
    "AllowAccounts": ("accounts", "allowed"), "DenyAccounts": ("accounts", "deny"),
    "AllowGroups": ("groups", "allowed"), "AllocNodes": ("nodes", "allowed_allocation"),
    "AllowQos": ("qos", "allowed"), "DenyQos": ("qos", "deny"), "QOS": ("qos", "assigned"),
    "MaxNodes": ("maximums", "nodes"), "MaxTime": ("maximums", "time"),
    "RootOnly": ("flags", "ROOT_ONLY"), "ReqResv": ("flags", "REQ_RESV"),
}  # fmt: skip
ACTIVE = {"PENDING", "RUNNING", "SUSPENDED", "UNKNOWN"}  # UNKNOWN without an answer; the others are final
NOT_ENDED = ACTIVE | {"COMPLETING"}


def states_of(job: Mapping[str, Any]) -> Sequence[str]:
    """The state of a job with its flags."""
    found = job.get("job_state") or ["UNKNOWN"]
    return [found] if isinstance(found, str) else list(found)


@dataclass(frozen=True)
class SlurmNode:
    """A node as slurmctld knows it. `by`: who has set the reason. `on`: the Node of its pod, "" without one.

    `of_pod`: whether the operator has made it, for a pod.
    """

    name: str
    states: tuple[str, ...]
    reason: str
    by: str
    gres: str
    on: str
    of_pod: bool

    @property
    def problem(self) -> str:
        """Why it starts no jobs; empty if it does."""
        if not set(self.states) & {*_BAD}:
            return ""
        return f"{'+'.join(self.states)}{f': {self.reason}' if self.reason else ''}"

    @property
    def of_program(self) -> bool:
        """True if the reason is that of an update or of the operator, who are the user slurm."""
        return self.by == USER and (self.reason == UPDATE or self.reason.startswith(OF_OPERATOR))

    @property
    def is_down(self) -> bool:
        """True if no slurmd responds there, or somebody has set it down."""
        return "DOWN" in self.states

    @property
    def is_busy(self) -> bool:
        """True if jobs run there. Those of a node that is down have ended."""
        return bool(_BUSY & {*self.states}) and not self.is_down

    @property
    def of_update(self) -> bool:
        """True if an update has drained it."""
        return self.of_program and self.reason == UPDATE and "DRAIN" in self.states

    @property
    def held(self) -> str:
        """STATE REASON of a DRAIN, DOWN or FAIL that somebody has set; empty for one by a program."""
        states, reason = {*self.states}, self.reason.removesuffix(_NOTED)
        if reason == UPDATE or reason.startswith(OF_OPERATOR) or _OF_SLURMCTLD.fullmatch(reason):
            if self.by == USER:
                return ""
            # busbar sets it again as the user slurm.
            reason = f"{reason} ({self.by})"
        found = "FAIL" if "FAIL" in states else "DRAIN" if "DRAIN" in states else ""
        if not found and reason and "DOWN" in states and "NOT_RESPONDING" not in states:
            found = "DOWN"
        return f"{found} {reason or 'no reason given'}" if found else ""

    @property
    def kept_away(self) -> str:
        """Why a person or a reservation keeps jobs away from it, although it is well; empty otherwise."""
        states = {*self.states}
        if {"INVALID_REG", "NOT_RESPONDING"} & states or ("DOWN" in states and "DOWN " not in self.held):
            return ""
        if self.by == USER and _FAILS.match(self.reason):
            return ""
        if "DRAIN" in states:
            return self.reason or "no reason given"
        _, _, reason = self.held.partition(" ")
        return reason or ("reservation" if {"MAINTENANCE", "RESERVED"} & states else "")

    @property
    def idle(self) -> bool:
        """True if it runs no jobs and starts them."""
        return "IDLE" in self.states and not self.problem


NO_NODE = SlurmNode(name="", states=(), reason="", by="", gres="", on="", of_pod=False)
"""In place of the node of a pod that Slurm does not know."""


def token(key: bytes, user: str, now: float) -> str:
    """A JSON web token by which slurmctld knows `user` (https://slurm.schedmd.com/jwt.html)."""

    def part(found: bytes) -> str:
        return base64.urlsafe_b64encode(found).rstrip(b"=").decode()

    claims = {"iat": int(now), "exp": int(now) + TOKEN_SECONDS, "sun": user}
    signed = ".".join(part(json.dumps(each).encode()) for each in ({"alg": "HS256", "typ": "JWT"}, claims))
    return f"{signed}.{part(hmac.new(key, signed.encode(), hashlib.sha256).digest())}"


class ProxyApi(Api, Protocol):
    """A client that can send headers to a service behind the API's proxy."""

    def sending(self, headers: Mapping[str, str]) -> Api:
        """The same client with headers in every request."""
        ...


class SlurmApi:
    """slurmrestd of one Slurm cluster. Every method raises ApiError."""

    def __init__(self, api: ProxyApi, namespace: str) -> None:
        self._kube, self.namespace = api, namespace
        self._api: Api | None = None
        self._made_at = 0.0
        self._proxy = f"/api/v1/namespaces/{namespace}/services/{RELEASE}-restapi:{PORT}/proxy/slurm"
        self._base, self._partitions = f"{self._proxy}/{VERSION}", f"{self._proxy}/v0.0.45/partitions/"

    def nodes(self) -> dict[str, SlurmNode]:
        """All nodes by name."""
        on = {pod_host(pod): pod["spec"].get("nodeName", "") for pod in self.worker_pods()}
        found = self._asked().get(f"{self._base}/nodes/").get("nodes") or []
        nodes = (
            SlurmNode(
                name=each["name"],
                states=tuple(each.get("state") or ("UNKNOWN",)),
                reason=str(each.get("reason") or ""),
                by=str(each.get("reason_set_by_user") or ""),
                gres=str(each.get("gres") or ""),
                on=on.get(each["name"], ""),
                of_pod=_POD_NAME in str(each.get("comment") or ""),
            )
            for each in found
        )
        return {node.name: node for node in nodes}

    def nodes_by_host(self) -> dict[str, SlurmNode]:
        """Node of Kubernetes -> the node of the pod there."""
        return {node.on: node for node in self.nodes().values() if node.on}

    def worker_pods(self) -> list[JsonObject]:
        """The pods of all NodeSets."""
        return self._kube.list(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=POD_LABELS)

    def submit(self, script: str, job: Mapping[str, Any]) -> int:
        """Submit a job; its number."""
        answer = self._asked().create(f"{self._base}/job/submit", {"script": script, "job": dict(job)})
        return int(answer["job_id"])

    def job(self, number: int) -> JsonObject:
        """A job; empty where slurmctld does not know it."""
        found: Sequence[JsonObject] = self._asked().get(f"{self._base}/job/{number}").get("jobs") or [{}]
        return found[0]

    def active_jobs(self, partition: str = "", states: Set[str] = NOT_ENDED) -> list[int]:
        """The jobs in one of these states, or those of them that name a partition; each as a whole."""
        jobs = [each for each in self._jobs() if states & {*states_of(each)}]
        if partition:
            jobs = [each for each in jobs if partition in str(each.get("partition")).split(",")]
        wholes = [(each.get("het_job_id") or {}).get("number") or each["job_id"] for each in jobs]
        return [*dict.fromkeys(map(int, wholes))]

    def reservations(self, partition: str) -> list[str]:
        """The reservations that name a partition."""
        found = self._asked().get(f"{self._base}/reservations/").get("reservations") or []
        return [each["name"] for each in found if each.get("partition") == partition]

    def suspended(self) -> set[str]:
        """The nodes of suspended jobs, which Slurm shows as idle; its list of jobs may be long."""
        found = [str(each.get("nodes") or "") for each in self._jobs() if "SUSPENDED" in states_of(each)]
        return {name for nodes in found for name in _names(nodes)}

    def overdue(self) -> dict[str, str]:
        """Node -> which job has ended and does not leave it (busbar.fabric.slurm.overdue)."""
        late = [each for each in self._jobs() if "COMPLETING" in states_of(each)]
        if not late:
            return {}
        # Imported here, because it brings the judge, which no update needs.
        from busbar.fabric.slurm import overdue

        controller = f"/apis/{API_VERSION}/namespaces/{self.namespace}/controllers/{RELEASE}"
        found = find(self._kube, controller)
        lines = str((found or {"spec": {}})["spec"].get("extraConf") or "").splitlines()
        parameters = {name: value for name, _, value in (line.partition("=") for line in lines)}
        texts: dict[str, str] = {}
        for each in late:
            text = overdue(str(each["job_id"]), time.time() - each["end_time"]["number"], parameters)
            texts |= dict.fromkeys(_names(str(each.get("nodes") or "")) if text else (), text)
        return texts

    def limits(self) -> dict[str, dict[str, str]]:
        """Partition -> its limits as scontrol takes them; empty where all is allowed."""
        found = find(self._asked(), self._partitions) or self._asked().get(f"{self._base}/partitions/")
        limits: dict[str, dict[str, str]] = {}
        for each in found.get("partitions") or []:
            known = {name: at for name, at in _LIMITS.items() if at[0] in each}
            limits[each["name"]] = {name: _shown(each[part], key) for name, (part, key) in known.items()}
        return limits

    def limit(self, partition: str, limits: Mapping[str, str]) -> None:
        """Set limits of a partition; an empty one allows all. Slurm before 26.05 has not_found for that."""
        body: dict[str, Any] = {"name": partition}
        for name, text in limits.items():
            part, key = _LIMITS[name]
            value: Any = text
            if part == "maximums":
                value = {"set": bool(text), "infinite": not text, "number": int(text or 0)}
            if part == "flags":
                body.setdefault(part, []).append(key if text else f"{key}_CLEAR")
            else:
                body.setdefault(part, {})[key] = value
        self._asked().create(self._partitions, {"partitions": [body]})

    def forget_cordon(self, on: str) -> None:
        """Take the operator's mark of a cordon away from the pod on a Node; with OnDelete it leaves it."""
        for pod in self.worker_pods():
            metadata = pod["metadata"]
            if pod["spec"].get("nodeName") == on and POD_CORDON in (metadata.get("annotations") or {}):
                path = f"/api/v1/namespaces/{self.namespace}/pods/{metadata['name']}"
                self._kube.merge(path, {"metadata": {"annotations": {POD_CORDON: None}}})

    def drain(self, node: str, reason: str, state: str = "DRAIN") -> None:
        """Start no more jobs on a node; `state`: DRAIN, DOWN or FAIL."""
        self._asked().create(f"{self._base}/node/{node}", {"state": [state], "reason": reason})

    def undrain(self, node: str) -> None:
        """End the drain of a node."""
        self._asked().create(f"{self._base}/node/{node}", {"state": ["UNDRAIN"], "reason": ""})

    def forget(self, node: str) -> None:
        """Delete the record of a node."""
        self._asked().delete(f"{self._base}/node/{node}")

    def read_at(self) -> float:
        """When slurmctld has read its configuration: it starts itself anew for that."""
        found = self._asked().get(f"{self._base}/diag/")["statistics"]["req_time_start"]
        return float(found["number"])

    def cancel(self, number: int) -> None:
        """Cancel a job."""
        self._asked().delete(f"{self._base}/job/{number}")

    def _jobs(self) -> list[JsonObject]:
        return self._asked().get(f"{self._base}/jobs/").get("jobs") or []

    def _asked(self) -> Api:
        """A client with a token of slurmctld's user, a new one before it ends. The key is nowhere written."""
        if self._api is None or time.monotonic() - self._made_at > TOKEN_SECONDS / 2:
            secret = self._kube.get(f"/api/v1/namespaces/{self.namespace}/secrets/{JWT_KEY}")
            key = base64.b64decode(secret["data"]["jwt.key"])
            made = token(key, USER, time.time())
            self._made_at = time.monotonic()
            self._api = self._kube.sending({"X-SLURM-USER-NAME": USER, "X-SLURM-USER-TOKEN": made})
        return self._api


def _shown(part: Any, key: str) -> str:
    if isinstance(part, list):
        return "YES" if key in part else ""
    limit: str | Mapping[str, Any] = part[key]
    return limit if isinstance(limit, str) else str(limit["number"]) if limit["set"] else ""


def _names(listed: str) -> Iterator[str]:
    """The nodes in a list of Slurm: lab-09, lab-10 and lab-12 for `lab-[09-10,12]`."""
    for name, numbers in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", listed):
        for each in numbers.split(","):
            first, _, last = each.partition("-")
            found = range(int(first), int(last or first) + 1) if first else [""]
            yield from (f"{name}{number:0>{len(first)}}" for number in found)


def pod_of(node: str) -> str:
    """The pod of a node of Slurm."""
    return f"{WORKER}{node}"


def pod_host(pod: JsonObject) -> str:
    """The name of a worker pod's node in Slurm."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def transient(error: ApiError) -> bool:
    """True if slurmrestd, its Service or its key may only not be there yet."""
    return error.transient or error.not_found


def clusters(api: ProxyApi, **query: str) -> dict[SlurmApi, list[JsonObject]]:
    """The Slurm clusters of busbar with worker pods. Another one, without busbar's key, cannot be asked."""
    found: dict[str, list[JsonObject]] = {}
    for pod in api.list("/api/v1/pods", labelSelector=POD_LABELS, **query):
        found.setdefault(pod["metadata"]["namespace"], []).append(pod)
    key = "/api/v1/namespaces/{}/secrets/" + JWT_KEY
    return {SlurmApi(api, name): pods for name, pods in found.items() if find(api, key.format(name))}
