"""What the operators say about themselves: ClusterPolicy and NicClusterPolicy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from busbar.kube.client import Api, ApiError, JsonObject

PolicyKind = Literal["ClusterPolicy", "NicClusterPolicy"]

PATHS: dict[PolicyKind, str] = {
    "ClusterPolicy": "/apis/nvidia.com/v1/clusterpolicies",
    "NicClusterPolicy": "/apis/mellanox.com/v1alpha1/nicclusterpolicies",
}

# "ready" with one of these reasons means that the operator found nothing to do
# (NVIDIA/gpu-operator, controllers/clusterpolicy_controller.go).
EMPTY_REASONS = frozenset({"NoGPUNodes", "NFDLabelsMissing"})


@dataclass(frozen=True)
class PolicyState:
    """One policy object: whether it claims to be ready, and what it says about that."""

    name: str
    ready: bool
    says: str


def read(api: Api, kind: PolicyKind) -> list[PolicyState]:
    """The policies of one kind; none where the kind does not exist. Raises ApiError for all else."""
    try:
        return [state_of(kind, policy) for policy in api.list(PATHS[kind])]
    except ApiError as error:
        if error.not_found:
            return []
        raise


def state_of(kind: PolicyKind, policy: JsonObject) -> PolicyState:
    """Read one policy. A policy without a status has not been looked at by its operator: not ready."""
    status = policy.get("status") or {}
    state = str(status.get("state") or "no status yet: the operator has not looked at it")
    remarks: list[str] = []
    empty = False
    for condition in status.get("conditions") or []:
        reason, message = condition.get("reason") or "", condition.get("message") or ""
        if reason in EMPTY_REASONS:
            empty = True
        if reason in EMPTY_REASONS or (
            condition.get("status") == "True" and condition.get("type") != "Ready"
        ):
            remarks.append(f"{reason}: {message}".rstrip(": "))
    if reason := status.get("reason"):
        remarks.append(str(reason))
    for applied in status.get("appliedStates") or []:
        if applied.get("state") not in ("ready", "ignore"):
            message = f" ({applied['message']})" if applied.get("message") else ""
            remarks.append(f"{applied.get('name')} is {applied.get('state')}{message}")
    name = f"{kind} {policy['metadata']['name']}"
    says = f"{name}: {state}" + "".join(f"; {remark}" for remark in dict.fromkeys(remarks))
    return PolicyState(name, state == "ready" and not empty, says)
