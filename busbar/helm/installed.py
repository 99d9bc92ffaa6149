"""Looks for releases and namespaces on the cluster."""

from __future__ import annotations

from collections.abc import Collection

from busbar.kube.batches import answer
from busbar.kube.client import Api, ApiError

Expected = Collection[tuple[str, str | None]]
"""(namespace, release) of each release, and (namespace, None) of each namespace."""


def ask(kubeconfig: str, expected: Expected) -> list[str]:
    """Everything that is missing, each as a sentence.

    Raises ApiError or TimedOut without an answer after 20 s, and ValueError for an unusable kubeconfig.
    """
    return answer(kubeconfig, lambda api: missing(api, expected))


def missing(api: Api, expected: Expected) -> list[str]:
    """The answer of `ask`, with one request per release, and per namespace without one. Raises ApiError."""
    releases = sorted((namespace, release) for namespace, release in expected if release)
    others = {namespace for namespace, _ in expected} - {namespace for namespace, _ in releases}
    gone = [f"Helm release {space}/{name}" for space, name in releases if not _deployed(api, space, name)]
    gone += [f"namespace {namespace}" for namespace in sorted(others) if not _exists(api, namespace)]
    return [f"{each} is not on the cluster" for each in gone]


def _deployed(api: Api, namespace: str, release: str) -> bool:
    selector = f"owner=helm,name={release},status=deployed"
    return bool(api.list(f"/api/v1/namespaces/{namespace}/secrets", labelSelector=selector))


def _exists(api: Api, namespace: str) -> bool:
    try:
        found = api.get(f"/api/v1/namespaces/{namespace}")
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return "deletionTimestamp" not in found["metadata"]
