"""Clients of a running cluster's API."""

from __future__ import annotations

from pathlib import Path

from busbar.kube.client import RestApi


class QuickApi(RestApi):
    """A client that gives up early, so that an outage is measured and not waited for."""

    timeout_seconds = 5
    silence_seconds = 10


def rest_api(kubeconfig: str) -> QuickApi:
    """A client with the rights of a kubeconfig file."""
    return QuickApi(Path(kubeconfig).read_text())
