"""Jobs that a chart runs before or after an operation of Helm, which waits for them and does not say why."""

from __future__ import annotations

from busbar.kube.client import Api
from busbar.kube.pods import issue_report


def problems(api: Api, namespace: str) -> list[str]:
    """List the problems that keep hook Jobs of the namespace from running. Raises ApiError."""
    found, base = [], f"/api/v1/namespaces/{namespace}"
    for job in api.list(f"/apis/batch/v1/namespaces/{namespace}/jobs"):
        metadata, status = job["metadata"], job.get("status") or {}
        if "helm.sh/hook" in (metadata.get("annotations") or {}) and not status.get("succeeded"):
            selector = f"batch.kubernetes.io/job-name={metadata['name']}"
            pods = api.list(f"{base}/pods", labelSelector=selector)
            lines = issue_report(pods, api.list(f"{base}/events"), also=[metadata["name"]])
            found += [f"hook Job {namespace}/{metadata['name']}: {line}" for line in lines]
    return found


def of_uninstallations(api: Api) -> list[str]:
    """`problems` of all releases that are being uninstalled. Raises ApiError."""
    records = api.list("/api/v1/secrets", labelSelector="owner=helm,status=uninstalling")
    namespaces = sorted({record["metadata"]["namespace"] for record in records})
    return [line for each in namespaces for line in problems(api, each)]
