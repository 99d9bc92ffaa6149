"""Waits until the operator's webhook answers: its certificate is new after every change of its release."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from busbar.kube.client import Api, ApiError
from busbar.kube.wait import Clock, Deadline, Pending, ProgressCallback, wait_until
from busbar.models import StrictModel
from stacks.slurm_k8s.package.values import OPERATOR

API_VERSION = "slinky.slurm.net/v1beta1"
SERVICE = "slurm-operator-webhook"
POLL_SECONDS = 2.0


class AdmissionSpec(StrictModel):
    """Stdin of `busbar slurm_k8s admission`. `namespace`: in which the objects will be."""

    namespace: str
    deadline_seconds: float = Field(gt=0)


def wait(api: Api, spec: AdmissionSpec, clock: Clock, progress: ProgressCallback) -> str:
    """The name of the object that was accepted in a dry run. Raises TimedOut, and ApiError."""

    path = f"/apis/{API_VERSION}/namespaces/{spec.namespace}/controllers"
    deadline = Deadline(clock, spec.deadline_seconds)

    def look() -> str | Pending:
        if not _endpoints(api):
            return Pending(f"Service {OPERATOR.namespace}/{SERVICE} has no ready endpoint")
        try:
            api.create(f"{path}?dryRun=All", _probe(spec.namespace))
        except ApiError as error:
            # 500: the API server cannot reach the webhook, or does not know its authority yet.
            return Pending(f"the operator's webhook is not ready: {error}")
        return _NAME

    return wait_until(look, deadline, poll_seconds=POLL_SECONDS, progress=progress)


_NAME = "busbar-dry-run"


def _endpoints(api: Api) -> bool:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{OPERATOR.namespace}/endpointslices"
    slices = api.list(path, labelSelector=f"kubernetes.io/service-name={SERVICE}")
    found = (end for each in slices for end in each.get("endpoints") or [])
    return any((end.get("conditions") or {}).get("ready") for end in found)


def _probe(namespace: str) -> dict[str, Any]:
    reference = {"name": _NAME, "key": "key"}
    return {
        "apiVersion": API_VERSION,
        "kind": "Controller",
        "metadata": {"name": _NAME, "namespace": namespace},
        "spec": {"slurmKeyRef": reference, "jwtHs256KeyRef": reference},
    }
