"""What an operator reports about itself in its policy object, such as a ClusterPolicy."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from busbar.kube.client import Api, ApiError, JsonObject
from busbar.models import StrictModel


class PolicySpec(StrictModel):
    """Which policy objects to read, and how to read them."""

    kind: str
    path: str = Field(description="Collection in the API, such as /apis/nvidia.com/v1/clusterpolicies.")
    must_be_ready: bool = Field(
        False, description="Whether a policy that exists must be ready; otherwise it is only quoted."
    )
    empty_reasons: frozenset[str] = Field(
        frozenset(), description='Reasons that turn "ready" into not ready: the operator found nothing to do.'
    )


@dataclass(frozen=True)
class PolicyState:
    """One policy object: whether it is ready, and its status in one line.

    `current`: no condition is about an earlier generation of it.
    """

    name: str
    ready: bool
    summary: str
    current: bool = True


def read(api: Api, spec: PolicySpec) -> list[PolicyState]:
    """The policies of one kind; none where the kind does not exist. Raises ApiError for all else."""
    try:
        return [state_of(spec, policy) for policy in api.list(spec.path)]
    except ApiError as error:
        if error.not_found:
            return []
        raise


def state_of(spec: PolicySpec, policy: JsonObject) -> PolicyState:
    """Read one policy. A policy without a status has not been processed by its operator: not ready."""
    status = policy.get("status") or {}
    state = str(status.get("state") or "no status, the operator has not processed it")
    remarks: list[str] = []
    empty, current = False, True
    for condition in status.get("conditions") or []:
        reason, message = condition.get("reason") or "", condition.get("message") or ""
        found_nothing = reason in spec.empty_reasons
        empty = empty or found_nothing
        # Only the Network Operator has it, since 26.7.
        observed = condition.get("observedGeneration")
        current = current and (observed is None or observed == policy["metadata"].get("generation"))
        # `Ready`, and of components `SRIOVDevicePluginReady`: True is good.
        is_good = str(condition.get("type")).endswith("Ready")
        if found_nothing or (condition.get("status") == "True" and not is_good):
            remarks.append(f"{reason}: {message}".rstrip(": "))
    if not current:
        remarks.append("the operator has not processed its last change")
    if reason := status.get("reason"):
        remarks.append(str(reason))
    for applied in status.get("appliedStates") or []:
        if applied.get("state") not in ("ready", "ignore"):
            message = f" ({applied['message']})" if applied.get("message") else ""
            remarks.append(f"{applied.get('name')} is {applied.get('state')}{message}")
    name = f"{spec.kind} {policy['metadata']['name']}"
    summary = f"{name}: {state}" + "".join(f"; {remark}" for remark in dict.fromkeys(remarks))
    return PolicyState(name, state == "ready" and current and not empty, summary, current)
