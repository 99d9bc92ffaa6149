"""Wait until every worker offers exactly the devices that its pool expects.

An operator's own "ready" is no proof: it also says so when it found no GPU at all, and its rollout differs
by minutes between the nodes (NVIDIA/aicr#1862). What the scheduler can hand out is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from busbar.kube import policies
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.clock import Clock, Deadline
from busbar.kube.events import namespace_report
from busbar.kube.policies import PolicyKind

POLL_SECONDS = 1.5
HEARTBEAT_SECONDS = 30.0
_NAMED_NODES = 10

CURES = {
    "ClusterPolicy": "on the node: `nvidia-smi` lists the GPUs? Then the pods of the GPU Operator above; a "
    "runtime that came after K3s needs `systemctl restart k3s-agent`",
    "NicClusterPolicy": "on the node: `ls /sys/class/infiniband` lists the HCAs, ports ACTIVE? Too many "
    "match: narrow network_operator.selectors; none match: is `ib_ipoib` loaded (linkTypes needs a netdev)?",
}


class AllocatableSpec(BaseModel):
    """What to wait for; the JSON that `busbar wait allocatable` reads on stdin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    resource: str = Field(description="Extended resource, such as nvidia.com/gpu.")
    nodes: dict[str, int] = Field(min_length=1, description="How many each node must offer, by node name.")
    deadline_seconds: float = Field(gt=0)
    stable_seconds: float = Field(
        3, ge=0, description="How long it must stay so: a restarting runtime withdraws its devices again."
    )
    policy: PolicyKind | None = Field(
        None, description="The operator's policy to quote; a ClusterPolicy that exists must also be ready."
    )
    namespace: str | None = Field(None, description="Where the operator's pods run, for the message.")


@dataclass(frozen=True)
class Shortfall:
    """A node that does not offer what it should, and why, as far as its Node object tells."""

    node: str
    found: int
    expected: int
    why: str

    def __str__(self) -> str:
        return f"{self.node}: {self.found} allocatable, {self.expected} expected ({self.why})"


class NotAllocatable(Exception):
    """The deadline passed; the text names the nodes, what they offer, and what the operator says."""


def shortfalls(nodes: Iterable[JsonObject], spec: AllocatableSpec) -> list[Shortfall]:
    """The nodes of `spec` that do not offer exactly what they should, in the order of `spec`."""
    by_name = {node["metadata"]["name"]: node for node in nodes}
    found = (_shortfall(name, by_name.get(name), want, spec.resource) for name, want in spec.nodes.items())
    return [shortfall for shortfall in found if shortfall]


def _shortfall(name: str, node: JsonObject | None, expected: int, resource: str) -> Shortfall | None:
    if node is None:
        return Shortfall(name, 0, expected, "no such node in the cluster")
    status = node.get("status") or {}
    offered = _count(status.get("allocatable"), resource)
    conditions: list[JsonObject] = status.get("conditions") or []
    ready = next((c for c in conditions if c.get("type") == "Ready"), JsonObject())
    if ready.get("status") != "True":
        why = f"the node is not Ready: {ready.get('message') or ready.get('reason') or 'no status'}"
        return Shortfall(name, offered, expected, why)
    if offered == expected:
        return None
    capacity = _count(status.get("capacity"), resource)
    if offered > expected:
        why = "more than the pool's; something is counted that is none of them"
    elif capacity > offered:
        why = f"{capacity - offered} of {capacity} are reported unhealthy by the device plugin"
    elif resource not in (status.get("capacity") or {}):
        why = "no device plugin has registered this resource"
    else:
        why = "the device plugin found no more"
    return Shortfall(name, offered, expected, why)


def _count(resources: JsonObject | None, name: str) -> int:
    value = str((resources or {}).get(name, "0"))
    # Extended resources are whole numbers; the API may still print 1000 as 1k.
    return int(value[:-1]) * 1000 if value.endswith("k") else int(value)


def wait(api: Api, spec: AllocatableSpec, clock: Clock, say: Callable[[str], None]) -> None:
    """Return when every node has offered what it should for `stable_seconds`.

    `say` gets one line at every change and every 30 s. Raises NotAllocatable at the deadline, and ApiError
    at once where waiting cannot help (the credentials are refused).
    """
    deadline = Deadline(clock, spec.deadline_seconds)
    good_since: float | None = None
    said, said_at = "", clock.now()
    while True:
        try:
            missing = shortfalls(api.list("/api/v1/nodes"), spec)
            waiting_for = [] if missing else _unready_policies(api, spec)
            state = _summary(spec, missing, waiting_for)
        except ApiError as error:
            if not error.transient:
                raise
            missing, waiting_for, state = [], [str(error)], f"{spec.resource}: {error}"
        if missing or waiting_for:
            good_since = None
        else:
            good_since = clock.now() if good_since is None else good_since
            if clock.now() - good_since >= spec.stable_seconds:
                say(state)
                return
        if state != said or clock.now() - said_at >= HEARTBEAT_SECONDS:
            say(f"{state} [{deadline.elapsed:.0f} s of {spec.deadline_seconds:.0f} s]")
            said, said_at = state, clock.now()
        if deadline.passed:
            raise NotAllocatable(_explain(api, spec, missing, waiting_for))
        deadline.pause(POLL_SECONDS)


def _unready_policies(api: Api, spec: AllocatableSpec) -> list[str]:
    # A site may run the device plugin without the operator's policy: an absent one is not asked for. A
    # NicClusterPolicy also covers parts that the measurement does not need: quoted, never waited for.
    if spec.policy != "ClusterPolicy":
        return []
    return [policy.says for policy in policies.read(api, spec.policy) if not policy.ready]


def _summary(spec: AllocatableSpec, missing: list[Shortfall], waiting_for: list[str]) -> str:
    done = len(spec.nodes) - len(missing)
    text = f"{spec.resource}: {done} of {len(spec.nodes)} workers offer what they should"
    if missing:
        text += "; " + ", ".join(f"{s.node} {s.found}/{s.expected}" for s in missing[:_NAMED_NODES])
        text += f" and {len(missing) - _NAMED_NODES} more" if len(missing) > _NAMED_NODES else ""
    return text + "".join(f"; waiting for {reason}" for reason in waiting_for)


def _explain(api: Api, spec: AllocatableSpec, missing: list[Shortfall], waiting_for: list[str]) -> str:
    head = (
        f"{spec.resource}: {len(missing)} of {len(spec.nodes)} workers do not offer what their pool expects"
        if missing
        else f"{spec.resource} has not been offered by every worker for {spec.stable_seconds:g} s on end"
    )
    lines = [f"{head}, after {spec.deadline_seconds:.0f} s:"]
    lines += [str(shortfall) for shortfall in missing[: 2 * _NAMED_NODES]]
    if len(missing) > 2 * _NAMED_NODES:
        lines.append(f"... and {len(missing) - 2 * _NAMED_NODES} more nodes")
    lines += waiting_for
    if spec.policy:
        try:
            said = [policy.says for policy in policies.read(api, spec.policy)]
            lines += [line for line in said or [f"there is no {spec.policy}"] if line not in lines]
        except ApiError as error:
            lines.append(f"{spec.policy} cannot be read: {error}")
    if spec.namespace:
        lines += namespace_report(api, spec.namespace)
    if spec.policy:
        lines.append(f"What to do: {CURES[spec.policy]}")
    return "\n  ".join(lines)
